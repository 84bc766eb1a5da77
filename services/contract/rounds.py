"""``/rounds``: candidates, schedules and outcomes."""

from typing import Any

from pydantic import BaseModel, Field

from services.contract.common import (
    CellId,
    ClientId,
    ModelEncoding,
    PolicyName,
    RoundId,
    TaskId,
    Timestamp,
    UpdateEncoding,
    request_config,
    response_config,
)
from services.contract.plans import SLOT_EXAMPLE, DeadlinePoint, Slot
from services.contract.registries import deadline_of
from services.domain.rounds import CandidateOutcome, RoundState, SlotOutcome
from services.domain.tasks import Dispatch


class RoundRequest(BaseModel):
    """The task that is to have another round."""

    model_config = request_config({"task_id": "task-8f14e45fceea167a"})

    task_id: TaskId


class CellSlot(Slot):
    """A selected client's turn on the channel of a cell; `order` counts the slots of that cell."""

    cell_id: CellId = Field(description="The cell in which the slot is, wherever its client goes.")


class RoundSlot(CellSlot):
    """A selected client's turn: as planned, and as it went."""

    data_samples: int = Field(description="Samples it reported.")
    throughput_bps: float | None = Field(description="As reported, per 10 resource blocks.")
    expected_throughput_bps: float | None = Field(
        description="What the round was planned with, if that is not what was reported; see the task's "
        "`correct_estimates` and `cap_reports`."
    )
    compute_samples_per_s: float | None = Field(description="As reported.")
    expected_compute_samples_per_s: float | None = Field(
        description="What the round was planned with, if that is not what was reported."
    )
    outcome: SlotOutcome
    elapsed_s: float | None = Field(
        description="Round time at the end of its upload: when the service had read the last byte."
    )
    actual_update_s: float | None = Field(
        description="How long its update took, as the client said with `Fedcs-Update-S`. If it did not say: "
        "on the wall clock, from the download of the model to the upload, if the upload began before its "
        "slot; else null. Compare `update_s`."
    )
    actual_upload_s: float | None = Field(description="The duration of its upload; compare `upload_s`.")
    rejections: int = Field(description="The number of rejected uploads.")
    last_rejection: str | None
    weight: int | None = Field(
        description="What its update counted in the model, by the samples it reported; null until aggregated."
    )
    update_norm: float | None = Field(
        description="How far its update moved the parameters (Euclidean norm), before clipping."
    )
    statistics_norm: float | None = Field(
        description="How far its update moved the running statistics, before clipping."
    )
    update_scale: float | None = Field(
        description="By what the step of its parameters was multiplied: 1 if it was not clipped."
    )
    statistics_scale: float | None = Field(description="The same for the running statistics.")
    ready_s: float | None = Field(
        description="Round time at which its update was ready; null with `dispatch: scheduled`."
    )
    granted_s: float | None = Field(description="Round time at which the channel was granted to it.")
    lapses: int = Field(description="How many of its grants have lapsed.")
    replaces: ClientId | None = Field(
        description="The client in whose place it was selected during the round; null: it was selected first."
    )

    @property
    def reported_update_s(self) -> float:
        """The time of its update as it follows from its report; `update_s` is what was planned."""
        return self.update_s * _share(self.expected_compute_samples_per_s, self.compute_samples_per_s)

    @property
    def reported_upload_s(self) -> float:
        """The time of its upload as it follows from its report."""
        return self.upload_s * _share(self.expected_throughput_bps, self.throughput_bps)


def _share(expected: float | None, reported: float | None) -> float:
    return 1.0 if expected is None or reported is None else expected / reported


class RoundCellResponse(BaseModel):
    """A cell of the round: its resource blocks, and how long its schedule takes."""

    cell_id: CellId
    resource_block_first: int
    resource_block_count: int
    distribution_s: float = Field(description="Time to multicast the model to the selected in this cell.")
    elapsed_s: float = Field(description="From the end of the distribution to the last upload in this cell.")


class NotSelectedCandidate(BaseModel):
    """A client that was drawn for the round and has no slot in it, and why."""

    client_id: ClientId
    cell_id: CellId
    reason: CandidateOutcome = Field(
        description="`DEADLINE`: with it the round would not end in time. `NO_DATA`: it holds no samples. "
        "`TOO_SLOW`: without a deadline, with it the round would last longer than 18 years. `NOT_CHOSEN`: it "
        "would have fitted; the policy chose others. `NO_REPORT`: it has no fresh report. `BUSY`: "
        "it has an open slot in a round of another task. `COOLDOWN`: it did not deliver in its last rounds, "
        "and is not drawn for some rounds. `MAX_SHARE`: it was selected in its share of the task's rounds. "
        "`ASKED`: the report window is open."
    )
    throughput_bps: float | None = Field(description="As reported, per 10 resource blocks.")
    expected_throughput_bps: float | None = Field(
        description="What the round was planned with, if that is not what was reported."
    )
    compute_samples_per_s: float | None = Field(description="As reported.")
    expected_compute_samples_per_s: float | None = Field(
        description="What the round was planned with, if that is not what was reported."
    )
    data_samples: int | None
    update_s: float | None = Field(description="Estimated from what was expected.")
    upload_s: float | None = Field(description="Estimated from what was expected.")
    cost_s: float | None = Field(
        description="The time it would add to the planned round; null if the policy does not use cost."
    )


ROUND_SLOT_EXAMPLE: dict[str, Any] = {
    **SLOT_EXAMPLE,
    "cell_id": "default",
    "data_samples": 200,
    "throughput_bps": 8_640_000.0,
    "expected_throughput_bps": None,
    "compute_samples_per_s": 50.0,
    "expected_compute_samples_per_s": None,
    "outcome": "received",
    "elapsed_s": 54.1,
    "actual_update_s": 20.2,
    "actual_upload_s": 16.9,
    "rejections": 0,
    "last_rejection": None,
    "weight": 200,
    "update_norm": 1.38,
    "statistics_norm": 1.7,
    "update_scale": 1.0,
    "statistics_scale": 1.0,
    "ready_s": None,
    "granted_s": None,
    "lapses": 0,
    "replaces": None,
}
_SCHEDULE: dict[str, Any] = {
    "round_id": "round-c9f0f895fb98ab91",
    "policy": "fedcs",
    "round_deadline_s": 180.0,
    "noise_scale": None,
    "deadline_tradeoff": None,
    "upload_size_bytes": 18_300_000,
    "download_size_bytes": 18_300_000,
    "update_encoding": "float32",
    "model_encoding": "float32",
    "topk_fraction": 0.1,
    "dispatch": "scheduled",
    "planning_factor": 1.0,
    "selection_s": 0.0,
    "aggregation_s": 0.0,
    "distribution_s": 16.944444444,
    "elapsed_s": 36.944444444,
    "total_s": 53.888888888,
    "upper_bound": 1,
    "upper_bound_exact": True,
    "cells": [
        {
            "cell_id": "default",
            "resource_block_first": 0,
            "resource_block_count": 10,
            "distribution_s": 16.944444444,
            "elapsed_s": 36.944444444,
        }
    ],
    "slots": [ROUND_SLOT_EXAMPLE],
    "not_selected": [
        {
            "client_id": "c2",
            "cell_id": "default",
            "reason": "DEADLINE",
            "throughput_bps": 1_400_000.0,
            "expected_throughput_bps": None,
            "compute_samples_per_s": 50.0,
            "expected_compute_samples_per_s": None,
            "data_samples": 500,
            "update_s": 50.0,
            "upload_s": 104.571428571,
            "cost_s": 205.253968254,
        }
    ],
}


class ScheduleResponse(BaseModel):
    """Who uploads when, and why the others do not. A client sees its own slot only."""

    model_config = response_config(_SCHEDULE)

    round_id: RoundId
    policy: PolicyName
    round_deadline_s: float = Field(description="The deadline of this round.")
    noise_scale: float | None = Field(description="By which the deadline was chosen; null if it is fixed.")
    deadline_tradeoff: list[DeadlinePoint] | None = Field(
        description="The deadlines that were compared; null if it is fixed."
    )
    upload_size_bytes: int = Field(description="What was scheduled for each upload.")
    download_size_bytes: int = Field(description="What was scheduled for the distribution of the model.")
    update_encoding: UpdateEncoding = Field(description="How updates of this round travel.")
    model_encoding: ModelEncoding = Field(description="How the model of this round travels.")
    topk_fraction: float = Field(description="Of each tensor's differences, how many `int8-topk` sends.")
    dispatch: Dispatch = Field(description="Who uploads next in this round.")
    planning_factor: float = Field(description="Estimated times were multiplied by it for selection.")
    selection_s: float
    aggregation_s: float
    distribution_s: float = Field(description="Time to multicast the model to the selected; the largest.")
    elapsed_s: float = Field(description="From the end of the distribution to the last upload; the largest.")
    total_s: float = Field(
        description="Selection, distribution and uploads in the cell where they take longest, aggregation."
    )
    upper_bound: int = Field(description="The most clients any selection could get in, over all cells.")
    upper_bound_exact: bool = Field(description="Whether so many really fit.")
    cells: list[RoundCellResponse] = Field(description="In the order of their ids. A client sees its own.")
    slots: list[RoundSlot] = Field(description="In the order of cells, those of a cell in upload order.")
    not_selected: list[NotSelectedCandidate]

    @property
    def deadline_s(self) -> float | None:
        """The deadline, if the policy honours it."""
        return deadline_of(self.policy, self.round_deadline_s)


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

    model_config = response_config(_ROUND)

    round_id: RoundId
    task_id: TaskId
    number: int = Field(description="1 for the task's first.")
    state: RoundState
    outcome: str | None = Field(
        description="Why it failed: `TOO_FEW_CLIENTS`, `TOO_FEW_UPDATES`, `IDLE_TIMEOUT` or "
        "`AGGREGATION_FAILED`."
    )
    model_version: int = Field(description="The version that its clients train.")
    clients: int = Field(description="K: the number of eligible clients.")
    asked: int = Field(description="The number of drawn clients.")
    selected: int
    received: int
    opened_at: Timestamp
    window_ends_at: Timestamp | None = Field(description="Until when reports are awaited.")
    started_at: Timestamp | None = Field(description="Round time 0: when Client Selection began.")
    upload_deadline_at: Timestamp | None = Field(
        description="Before when updates have to arrive; the service then closes the round, as soon as those "
        "that did have been checked. Null if it does not."
    )
    ended_at: Timestamp | None
    duration_s: float | None = Field(description="From round time 0 to its end, by the task's clock.")


class RoundResponse(RoundSummary):
    """A round with its schedule."""

    model_config = response_config({**_ROUND, "schedule": _SCHEDULE})

    schedule: ScheduleResponse | None = Field(description="Null until clients have been selected.")
