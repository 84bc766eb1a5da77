"""``POST /plans``: candidates in, schedule out."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from services.contract.common import (
    ClientId,
    DataSamples,
    Duration,
    Fraction,
    LocalEpochs,
    ModelEncoding,
    ModelSize,
    NoiseScale,
    PolicyName,
    PositiveDuration,
    Rate,
    ResourceBlocks,
    Seed,
    Slack,
    UpdateEncoding,
    distinct_clients,
    request_config,
    response_config,
)
from services.contract.registries import (
    PolicyParameters,
    check_deadline_mode,
    check_policy_parameters,
    deadline_of,
)
from services.domain.noise_scale import FIRST_NOISE_SCALE
from services.domain.resources import REPORT_RESOURCE_BLOCKS
from services.domain.selection import NotSelectedReason
from services.domain.tasks import DeadlineMode

MAX_CANDIDATES = 100_000


class Candidate(BaseModel):
    """What one client reported. The limits that a service sets for reports do not apply to a plan."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    client_id: ClientId
    throughput_bps: Rate = Field(description="Average uplink throughput in bit/s.")
    compute_samples_per_s: Rate = Field(description="Samples it can train on in a second.")
    data_samples: DataSamples = Field(description="Samples it holds. A client with none is never selected.")


Candidates = Annotated[
    list[Candidate],
    Field(min_length=1, max_length=MAX_CANDIDATES),
    AfterValidator(distinct_clients),
]


class PlanRequest(BaseModel):
    """A round to be planned: its terms, and the clients that could take part in it."""

    model_config = request_config(
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
    )

    policy: PolicyName = "fedcs"
    policy_parameters: PolicyParameters = {}
    round_deadline_s: PositiveDuration = Field(
        description="The round has to end strictly before this, if the policy honours deadlines."
    )
    deadline_mode: Annotated[DeadlineMode, Field(strict=False)] = Field(
        default=DeadlineMode.FIXED,
        description="`adaptive`: the deadline is chosen from the candidates and `noise_scale`; "
        "`round_deadline_s` is the longest allowed.",
    )
    min_round_deadline_s: PositiveDuration = Field(
        default=10.0, description="The shortest deadline in adaptive mode."
    )
    deadline_slack: Slack = Field(
        default=0.1, description="In adaptive mode, by which share the deadline is longer than the schedule."
    )
    noise_scale: NoiseScale = Field(
        default=FIRST_NOISE_SCALE, description="B, in clients; for the adaptive mode."
    )
    selection_s: Duration = Field(default=0.0, description="Time taken by Client Selection.")
    aggregation_s: Duration = Field(default=0.0, description="Time taken by Aggregation.")
    model_size_bytes: ModelSize
    update_encoding: UpdateEncoding = Field(default="float32", description="How updates travel.")
    model_encoding: ModelEncoding = Field(default="float32", description="How clients download the model.")
    topk_fraction: Fraction = Field(
        default=0.1, description="Of each tensor's differences, how many `int8-topk` sends."
    )
    upload_size_bytes: ModelSize | None = Field(
        default=None,
        description="What each client uploads; `model_size_bytes` times the factor of `update_encoding` if "
        "not given.",
    )
    download_size_bytes: ModelSize | None = Field(
        default=None,
        description="What each client downloads; `model_size_bytes` times the factor of `model_encoding` if "
        "not given.",
    )
    local_epochs: LocalEpochs = 5
    resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS, description="Resource blocks that the round has."
    )
    report_resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS,
        description="Resource blocks that `throughput_bps` refers to; with others it is scaled.",
    )
    seed: Seed = Field(default=0, description="For the policies with a random order.")
    candidates: Candidates

    _check_parameters = field_validator("policy_parameters")(check_policy_parameters)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_deadline_mode(self)
        return self

    @property
    def deadline_s(self) -> float | None:
        """The deadline, if the policy honours it."""
        return deadline_of(self.policy, self.round_deadline_s)


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


class DeadlinePoint(BaseModel):
    """A deadline that was considered."""

    model_config = ConfigDict(from_attributes=True)

    deadline_s: float
    clients: float = Field(description="The mean number of clients with it.")
    relative_cost: float = Field(description="Total · (1 + B/clients), relative to the best.")


class NotSelected(BaseModel):
    """A candidate that was not selected, and why."""

    client_id: ClientId
    reason: NotSelectedReason = Field(
        description="`DEADLINE`: with it the round would not end in time. `NO_DATA`: it holds no samples. "
        "`TOO_SLOW`: without a deadline, with it the round would last longer than 18 years. `NOT_CHOSEN`: it "
        "would have fitted; the policy chose others."
    )
    cost_s: float | None = Field(
        description="The time it would add to the planned round; null if the policy does not use cost."
    )


SLOT_EXAMPLE: dict[str, Any] = {
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


class PlanResponse(BaseModel):
    """The planned round."""

    model_config = response_config(
        {
            "policy": "fedcs",
            "round_deadline_s": 180.0,
            "noise_scale": None,
            "deadline_tradeoff": None,
            "distribution_s": 16.944444444,
            "elapsed_s": 36.944444444,
            "total_s": 53.888888888,
            "upload_size_bytes": 18_300_000,
            "download_size_bytes": 18_300_000,
            "upper_bound": 1,
            "upper_bound_exact": True,
            "slots": [SLOT_EXAMPLE],
            "not_selected": [{"client_id": "c2", "reason": "DEADLINE", "cost_s": 205.253968254}],
        }
    )

    policy: PolicyName
    round_deadline_s: float | None = Field(description="The deadline that holds; null without one.")
    noise_scale: float | None = Field(description="By which it was chosen; null if it is fixed.")
    deadline_tradeoff: list[DeadlinePoint] | None = Field(
        description="The deadlines that were compared; null if it is fixed."
    )
    distribution_s: float = Field(description="Time to multicast the model to the selected.")
    elapsed_s: float = Field(description="From the end of the distribution to the last upload.")
    total_s: float = Field(description="Selection, distribution, uploads and aggregation.")
    upload_size_bytes: int = Field(description="What was scheduled for each upload.")
    download_size_bytes: int = Field(description="What was scheduled for the distribution of the model.")
    upper_bound: int = Field(description="The maximum number of clients that fit.")
    upper_bound_exact: bool = Field(description="Whether so many really fit.")
    slots: list[Slot]
    not_selected: list[NotSelected]
