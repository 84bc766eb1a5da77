"""``POST /plans``: candidates in, schedule out."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from services.contract.fields import (
    ClientId,
    DataSamples,
    Duration,
    LocalEpochs,
    ModelSize,
    PolicyName,
    PositiveDuration,
    Rate,
    ResourceBlocks,
    Seed,
)
from services.domain.radio import REPORT_RESOURCE_BLOCKS
from services.domain.selection import LeftOutReason

MAX_CANDIDATES = 100_000


class Candidate(BaseModel):
    """What one client reported."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    client_id: ClientId
    throughput_bps: Rate = Field(description="Average uplink throughput in bit/s.")
    compute_samples_per_s: Rate = Field(description="Samples it can train on in a second.")
    data_samples: DataSamples = Field(description="Samples it holds. A client with none is never selected.")


def _distinct_clients(candidates: list[Candidate]) -> list[Candidate]:
    known: set[str] = set()
    for position, candidate in enumerate(candidates):
        if candidate.client_id in known:
            raise PydanticCustomError(
                "duplicate_client_id",
                "An earlier candidate has the same client_id",
                {"within": (position, "client_id")},
            )
        known.add(candidate.client_id)
    return candidates


Candidates = Annotated[
    list[Candidate],
    Field(min_length=1, max_length=MAX_CANDIDATES),
    AfterValidator(_distinct_clients),
]


class PlanRequest(BaseModel):
    """A round to be planned: its terms, and the clients that could take part in it."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "policy": "fedcs",
                    "round_deadline_s": 180,
                    "model_size_bytes": 18_300_000,
                    "candidates": [
                        {
                            "client_id": "c1",
                            "throughput_bps": 8_640_000,
                            "compute_samples_per_s": 50,
                            "data_samples": 200,
                        },
                        {
                            "client_id": "c2",
                            "throughput_bps": 1_400_000,
                            "compute_samples_per_s": 50,
                            "data_samples": 500,
                        },
                    ],
                }
            ]
        },
    )

    policy: PolicyName = "fedcs"
    round_deadline_s: PositiveDuration = Field(
        description="The round has to end strictly before this. The policy `fl` ignores it."
    )
    selection_s: Duration = Field(default=0.0, description="Time taken by Client Selection.")
    aggregation_s: Duration = Field(default=0.0, description="Time taken by Aggregation.")
    model_size_bytes: ModelSize
    local_epochs: LocalEpochs = 5
    resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS, description="Resource blocks the task owns."
    )
    report_resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS,
        description="Resource blocks that `throughput_bps` refers to; with others it is scaled.",
    )
    seed: Seed = Field(default=0, description="For the policies with a random order.")
    candidates: Candidates


class Slot(BaseModel):
    """A selected client's turn on the channel.

    `upload_*_s` count from the start of Scheduled Update and Upload, `window_*_s` from that of the round.
    """

    client_id: ClientId
    order: int = Field(description="1 uploads first.")
    update_s: float
    upload_s: float
    upload_start_s: float
    upload_end_s: float
    window_start_s: float
    window_end_s: float
    resource_block_first: int
    resource_block_count: int
    time_slot_first: int = Field(
        description="Of 0.5 ms, counted from the start of Scheduled Update and Upload. "
        "The boundaries of slots are rounded, so neighbours never overlap."
    )
    time_slot_count: int


class NotSelected(BaseModel):
    """A candidate that stays out of the round, and why."""

    client_id: ClientId
    reason: LeftOutReason = Field(
        description="`DEADLINE`: with it the round would not end in time. `NO_DATA`: it holds no samples."
    )
    cost_s: float | None = Field(
        description="What it would add to the round as planned; null where cost plays no part."
    )


class PlanResponse(BaseModel):
    """The planned round."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "policy": "fedcs",
                    "distribution_s": 16.944444444,
                    "elapsed_s": 36.944444444,
                    "total_s": 53.888888888,
                    "upper_bound": 1,
                    "upper_bound_exact": True,
                    "slots": [
                        {
                            "client_id": "c1",
                            "order": 1,
                            "update_s": 20.0,
                            "upload_s": 16.944444444,
                            "upload_start_s": 20.0,
                            "upload_end_s": 36.944444444,
                            "window_start_s": 36.944444444,
                            "window_end_s": 53.888888888,
                            "resource_block_first": 0,
                            "resource_block_count": 10,
                            "time_slot_first": 40000,
                            "time_slot_count": 33889,
                        }
                    ],
                    "not_selected": [{"client_id": "c2", "reason": "DEADLINE", "cost_s": 205.253968254}],
                }
            ]
        },
    )

    policy: PolicyName
    distribution_s: float = Field(description="Time to multicast the model to the selected.")
    elapsed_s: float = Field(description="From the end of the distribution to the last upload.")
    total_s: float = Field(description="Selection, distribution, uploads and aggregation.")
    upper_bound: int = Field(description="The most clients any selection could get in.")
    upper_bound_exact: bool = Field(description="Whether so many really fit.")
    slots: list[Slot]
    not_selected: list[NotSelected]
