"""``/rounds`` and ``/assignments``: who was asked, who was selected, who uploads when, and how it went."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.contract.fields import ClientId, PolicyName, RoundId, TaskId, Timestamp
from services.contract.plans import Slot
from services.domain.rounds import CandidateOutcome, RoundState, SlotOutcome


class RoundRequest(BaseModel):
    """The task that is to have another round."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"task_id": "task-8f14e45fceea167a"}]},
    )

    task_id: TaskId


class RoundSlot(Slot):
    """A selected client's turn: as planned, and as it went."""

    data_samples: int = Field(description="Samples it reported.")
    outcome: SlotOutcome
    elapsed_s: float | None = Field(description="Round time at the end of its upload.")
    actual_update_s: float | None = Field(description="What its update took; compare `update_s`.")
    actual_upload_s: float | None = Field(description="What its upload took; compare `upload_s`.")
    rejections: int = Field(description="How often it sent something that was no acceptable update.")
    last_rejection: str | None


class LeftOutCandidate(BaseModel):
    """A client that was drawn for the round and has no slot in it, and why."""

    client_id: ClientId
    reason: CandidateOutcome = Field(
        description="`DEADLINE`: with it the round would not end in time. `NO_DATA`: it holds no samples. "
        "`NO_REPORT`: it has no fresh report. `ASKED`: the report window is open."
    )
    throughput_bps: float | None
    compute_samples_per_s: float | None
    data_samples: int | None
    update_s: float | None = Field(description="Estimated from its report.")
    upload_s: float | None = Field(description="Estimated from its report.")
    cost_s: float | None = Field(
        description="What it would add to the round as planned; null where cost plays no part."
    )


_SLOT: dict[str, Any] = {
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
    "data_samples": 200,
    "outcome": "received",
    "elapsed_s": 54.1,
    "actual_update_s": 20.2,
    "actual_upload_s": 16.9,
    "rejections": 0,
    "last_rejection": None,
}
_SCHEDULE: dict[str, Any] = {
    "round_id": "round-c9f0f895fb98ab91",
    "policy": "fedcs",
    "round_deadline_s": 180.0,
    "selection_s": 0.0,
    "aggregation_s": 0.0,
    "distribution_s": 16.944444444,
    "elapsed_s": 36.944444444,
    "total_s": 53.888888888,
    "upper_bound": 1,
    "upper_bound_exact": True,
    "slots": [_SLOT],
    "not_selected": [
        {
            "client_id": "c2",
            "reason": "DEADLINE",
            "throughput_bps": 1_400_000.0,
            "compute_samples_per_s": 50.0,
            "data_samples": 500,
            "update_s": 50.0,
            "upload_s": 104.571428571,
            "cost_s": 205.253968254,
        }
    ],
}


class ScheduleResponse(BaseModel):
    """Who uploads when, and why the others do not. A client sees its own slot only."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SCHEDULE]})

    round_id: RoundId
    policy: PolicyName
    round_deadline_s: float
    selection_s: float
    aggregation_s: float
    distribution_s: float = Field(description="Time to multicast the model to the selected.")
    elapsed_s: float = Field(description="From the end of the distribution to the last upload.")
    total_s: float = Field(description="Selection, distribution, uploads and aggregation.")
    upper_bound: int = Field(description="The most clients any selection could get in.")
    upper_bound_exact: bool = Field(description="Whether so many really fit.")
    slots: list[RoundSlot]
    not_selected: list[LeftOutCandidate]


_ROUND: dict[str, Any] = {
    "round_id": "round-c9f0f895fb98ab91",
    "task_id": "task-8f14e45fceea167a",
    "number": 4,
    "state": "collecting",
    "outcome": None,
    "model_version": 3,
    "clients": 1000,
    "asked": 100,
    "selected": 8,
    "received": 5,
    "opened_at": "2026-01-01T12:00:00Z",
    "window_ends_at": None,
    "started_at": "2026-01-01T12:00:00Z",
    "upload_deadline_at": "2026-01-01T12:03:00Z",
    "ended_at": None,
    "duration_s": None,
}


class RoundSummary(BaseModel):
    """A round and how far it is."""

    model_config = ConfigDict(from_attributes=True, json_schema_extra={"examples": [_ROUND]})

    round_id: RoundId
    task_id: TaskId
    number: int = Field(description="1 for the task's first.")
    state: RoundState
    outcome: str | None = Field(
        description="Why it failed: `TOO_FEW_CLIENTS`, `TOO_FEW_UPDATES`, `SCHEDULE_TOO_LONG`, "
        "`IDLE_TIMEOUT` or `AGGREGATION_FAILED`."
    )
    model_version: int = Field(description="The version that its clients train.")
    clients: int = Field(description="K: how many could have been drawn.")
    asked: int = Field(description="How many were.")
    selected: int
    received: int
    opened_at: Timestamp
    window_ends_at: Timestamp | None = Field(description="Until when reports are awaited.")
    started_at: Timestamp | None = Field(description="Round time 0: when Client Selection began.")
    upload_deadline_at: Timestamp | None = Field(
        description="When the service closes it; null if it does not."
    )
    ended_at: Timestamp | None
    duration_s: float | None = Field(description="From round time 0 to its end, by the task's clock.")


class RoundResponse(RoundSummary):
    """A round with its schedule."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_ROUND, "schedule": _SCHEDULE}]})

    schedule: ScheduleResponse | None = Field(description="Null until clients have been selected.")


class ReportAssignment(BaseModel):
    """Report your resources, before the window ends."""

    kind: Literal["report"] = "report"
    task_id: TaskId
    round_id: RoundId
    until: Timestamp


class TrainAssignment(BaseModel):
    """Fetch the round's model, train it, and upload the update in your slot."""

    kind: Literal["train"] = "train"
    task_id: TaskId
    round_id: RoundId
    local_epochs: int
    batch_size: int
    learning_rate: float = Field(description="Of this round.")
    slot: Slot
    started_at: Timestamp = Field(description="Round time 0, to which the slot refers.")
    upload_deadline_s: float | None = Field(description="In round time; null if there is none.")


class AssignmentsResponse(BaseModel):
    """What the client has to do now; empty: nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "assignments": [
                        {
                            "kind": "train",
                            "task_id": "task-8f14e45fceea167a",
                            "round_id": "round-c9f0f895fb98ab91",
                            "local_epochs": 5,
                            "batch_size": 50,
                            "learning_rate": 0.2425,
                            "slot": {name: _SLOT[name] for name in Slot.model_fields},
                            "started_at": "2026-01-01T12:00:00Z",
                            "upload_deadline_s": 180.0,
                        }
                    ]
                }
            ]
        }
    )

    assignments: list[Annotated[ReportAssignment | TrainAssignment, Field(discriminator="kind")]]


class UpdateResponse(BaseModel):
    """An update that counts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "round_id": "round-c9f0f895fb98ab91",
                    "client_id": "c1",
                    "digest": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
                    "size_bytes": 18_300_000,
                    "data_samples": 200,
                }
            ]
        }
    )

    round_id: RoundId
    client_id: ClientId
    digest: str = Field(description="SHA-256 of the body, in hex.")
    size_bytes: int
    data_samples: int
