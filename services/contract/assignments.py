"""``/assignments``, ``/trainings`` and what selected clients send: declines, ready updates, uploads."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.contract.common import (
    CellId,
    ClientId,
    Duration,
    ModelEncoding,
    Name,
    PartitionIndex,
    Rate,
    RoundId,
    TaskId,
    Timestamp,
    TrainingId,
    UpdateEncoding,
    request_config,
    response_config,
)
from services.contract.rounds import ROUND_SLOT_EXAMPLE, CellSlot
from services.domain.channel import ChannelState
from services.domain.jobs import TrainingState


class ReportAssignment(BaseModel):
    """Report your resources, before the window ends."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    kind: Literal["report"] = "report"
    task_id: TaskId
    round_id: RoundId
    until: Timestamp
    starts_in_s: float = Field(description="0: report now.")
    ends_in_s: float = Field(description="Seconds from this answer until the window ends.")


class TrainAssignment(BaseModel):
    """Fetch the round's model, train it, and upload the update in your slot."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    kind: Literal["train"] = "train"
    task_id: TaskId
    round_id: RoundId
    local_epochs: int
    batch_size: int
    learning_rate: float = Field(description="Of this round.")
    gradient_clip_norm: float | None = Field(
        description="Shorten the gradient of each batch to this Euclidean norm; null: do not."
    )
    local_momentum: float
    weight_decay: float
    proximal_mu: float = Field(
        description="Add this many times the difference to the received model to the gradient."
    )
    calibrated_loss: bool = Field(
        description="Whether to add the logarithm of each class's share in the device's data to the outputs."
    )
    slot: CellSlot
    started_at: Timestamp = Field(description="Round time 0, to which the slot refers.")
    upload_deadline_s: float | None = Field(description="In round time; null if there is none.")
    starts_in_s: float | None = Field(
        description="Seconds from this answer until the slot begins, by the service's clock; negative: it "
        "has begun. Null on a simulated clock."
    )
    ends_in_s: float | None = Field(description="The same until the slot ends.")
    model_version: int = Field(description="The version to train.")
    model_size_bytes: int = Field(description="Of the file to download.")
    model_digest: str = Field(description="SHA-256 of that file, in hex.")
    model_encoding: ModelEncoding = Field(description="Of that file.")
    update_encoding: UpdateEncoding = Field(
        description="Of the update to send; repeat it in `Fedcs-Encoding`."
    )
    topk_fraction: float = Field(description="Of each tensor's differences, how many `int8-topk` sends.")
    channel: ChannelState | None = Field(
        description="With `dispatch: on_ready`, whether the channel is granted to this client: upload when "
        "it is `granted`. `not_ready`: call `POST /rounds/{round_id}/ready` when the update is done. "
        "null with `scheduled`: upload in the slot."
    )


_DIGEST = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


class AssignmentsResponse(BaseModel):
    """What the client has to do now; empty: nothing."""

    model_config = response_config(
        {
            "assignments": [
                {
                    "kind": "train",
                    "task_id": "task-8f14e45fceea167a",
                    "round_id": "round-c9f0f895fb98ab91",
                    "local_epochs": 5,
                    "batch_size": 50,
                    "learning_rate": 0.2425,
                    "gradient_clip_norm": 10.0,
                    "local_momentum": 0.0,
                    "weight_decay": 0.0,
                    "proximal_mu": 0.0,
                    "calibrated_loss": False,
                    "slot": {name: ROUND_SLOT_EXAMPLE[name] for name in CellSlot.model_fields},
                    "started_at": "2026-01-01T12:00:00Z",
                    "upload_deadline_s": 180.0,
                    "starts_in_s": 35.2,
                    "ends_in_s": 52.1,
                    "model_version": 3,
                    "model_size_bytes": 18_300_000,
                    "model_digest": _DIGEST,
                    "model_encoding": "float32",
                    "update_encoding": "float32",
                    "topk_fraction": 0.1,
                    "channel": "not_ready",
                }
            ]
        }
    )

    assignments: list[Annotated[ReportAssignment | TrainAssignment, Field(discriminator="kind")]]


class DeclineRequest(BaseModel):
    """Why the client will not upload in this round."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"reason": "The battery is low."}]},
    )

    reason: Annotated[Name, Field(min_length=1)]


class ReadyRequest(BaseModel):
    """The client's update is done."""

    model_config = request_config({"throughput_bps": 5_100_000})

    throughput_bps: Rate | None = Field(
        default=None,
        description="What the client's uplink gives now, for 10 resource blocks. With it the client is "
        "refused if it can no longer finish.",
    )
    elapsed_s: Duration | None = Field(
        default=None, description="Round time at which the update was done; for simulated clocks only."
    )


class Grant(BaseModel):
    """The channel of a cell, granted to a client."""

    client_id: ClientId
    cell_id: CellId
    granted_s: float = Field(description="In round time.")
    expires_s: float = Field(description="Round time at which it lapses.")


class ChannelResponse(BaseModel):
    """What a call changed about the channel. On the wall clock a client sees its own grant only."""

    grants: list[Grant] = Field(description="Grants that this call caused.")
    replacements: list[ClientId] = Field(
        description="On simulated clocks: clients selected in the place of others that are not ready yet."
    )


class ReadyResponse(ChannelResponse):
    """Whether the client may upload."""

    model_config = response_config(
        {
            "grants": [{"client_id": "c1", "cell_id": "default", "granted_s": 37.1, "expires_s": 39.1}],
            "replacements": [],
            "state": "granted",
        }
    )

    state: ChannelState = Field(
        description="`granted`: upload now. `waiting`: another client holds the channel; `GET /assignments` "
        "tells of the grant. `refused`: the upload would end too late."
    )


class UpdateResponse(ChannelResponse):
    """An accepted update."""

    model_config = response_config(
        {
            "round_id": "round-c9f0f895fb98ab91",
            "client_id": "c1",
            "digest": _DIGEST,
            "size_bytes": 18_300_000,
            "data_samples": 200,
            "grants": [],
            "replacements": [],
        }
    )

    round_id: RoundId
    client_id: ClientId
    digest: str = Field(description="SHA-256 of the body, in hex.")
    size_bytes: int
    data_samples: int


class TrainingRequest(BaseModel):
    """Train in the place of a simulated client."""

    model_config = request_config({"round_id": "round-c9f0f895fb98ab91", "client_id": "c1", "partition": 17})

    round_id: RoundId
    client_id: ClientId
    partition: PartitionIndex = Field(
        description="Which part of the task's data set the device holds: drawn with the task's seed and this "
        "number, of as many samples as the client reported."
    )


class TrainingResponse(BaseModel):
    """A hosted training and how far it is."""

    model_config = response_config(
        {
            "training_id": "training-45c48cce2e2d7fbd",
            "round_id": "round-c9f0f895fb98ab91",
            "client_id": "c1",
            "partition": 17,
            "state": "waiting",
            "created_at": "2026-01-01T12:00:00Z",
            "ended_at": None,
            "error": None,
        }
    )

    training_id: TrainingId
    round_id: RoundId
    client_id: ClientId
    partition: int
    state: TrainingState
    created_at: Timestamp
    ended_at: Timestamp | None
    error: str | None
