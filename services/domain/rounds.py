"""A round: the states of its life, its candidates and its slots, and when an upload is in time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from services.domain.nanoseconds import to_ns
from services.domain.tasks import SlotEnforcement, TaskTerms


class RoundState(StrEnum):
    """Where a round is in its life."""

    REQUESTING = "requesting"
    SCHEDULED = "scheduled"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    AGGREGATED = "aggregated"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDINGS = frozenset({RoundState.FAILED, RoundState.CANCELLED})

ROUND_MOVES: Mapping[RoundState, frozenset[RoundState]] = {
    RoundState.REQUESTING: frozenset({RoundState.SCHEDULED}) | _ENDINGS,
    RoundState.SCHEDULED: frozenset({RoundState.COLLECTING, RoundState.AGGREGATING}) | _ENDINGS,
    RoundState.COLLECTING: frozenset({RoundState.AGGREGATING}) | _ENDINGS,
    RoundState.AGGREGATING: frozenset({RoundState.AGGREGATED}) | _ENDINGS,
    RoundState.AGGREGATED: frozenset(),
    RoundState.FAILED: frozenset(),
    RoundState.CANCELLED: frozenset(),
}
"""Which state may follow which."""

OPEN_STATES = tuple(state for state, moves in ROUND_MOVES.items() if moves)
UPLOAD_STATES = (RoundState.SCHEDULED, RoundState.COLLECTING)


class CandidateOutcome(StrEnum):
    """What became of a client that was drawn for a round."""

    ASKED = "ASKED"
    """It has been asked for its resources; the report window is open."""
    SELECTED = "SELECTED"
    DEADLINE = "DEADLINE"
    """With it the round would not end before its deadline."""
    NO_DATA = "NO_DATA"
    """It holds no samples to train on."""
    NO_REPORT = "NO_REPORT"
    """It has no fresh report."""


class SlotOutcome(StrEnum):
    """What became of a slot."""

    PENDING = "pending"
    RECEIVED = "received"
    LATE = "late"
    """The update came after its deadline."""
    REJECTED = "rejected"
    """What came was no acceptable update, and nothing better followed."""
    MISSED = "missed"
    """Nothing came."""


class Candidate(NamedTuple):
    """A client drawn for a round: what it reported, what was estimated from that, and what became of it."""

    position: int
    client_id: str
    outcome: CandidateOutcome
    throughput_bps: float | None = None
    compute_samples_per_s: float | None = None
    data_samples: int | None = None
    update_ns: int | None = None
    upload_ns: int | None = None
    cost_ns: int | None = None


@dataclass(frozen=True)
class Slot:
    """A selected client's turn: as planned (windows count from the start of the round), and as it went."""

    client_id: str
    order: int
    data_samples: int
    update_ns: int
    upload_ns: int
    upload_start_ns: int
    upload_end_ns: int
    window_start_ns: int
    window_end_ns: int
    time_slot_first: int
    time_slot_count: int
    outcome: SlotOutcome = SlotOutcome.PENDING
    model_fetched_at: datetime | None = None
    uploaded_at: datetime | None = None
    elapsed_s: float | None = None
    """Round time at the end of its upload."""
    actual_update_s: float | None = None
    actual_upload_s: float | None = None
    rejections: int = 0
    last_rejection: str | None = None


@dataclass(frozen=True)
class AcceptedUpdate:
    """What a client uploaded in time; the bytes are in the model store, under their digest."""

    client_id: str
    digest: str
    size_bytes: int
    data_samples: int
    received_at: datetime


@dataclass(frozen=True)
class Round:
    """A round as it stands."""

    serial: int
    round_id: str
    task_serial: int
    task_id: str
    number: int
    state: RoundState
    model_version: int
    clients: int
    """K: how many could have been drawn."""
    asked: int
    """⌈K·C⌉: how many were."""
    opened_at: datetime
    window_ends_at: datetime | None
    started_at: datetime | None
    """Round time 0: when Client Selection began."""
    upload_deadline_at: datetime | None
    """When the service closes the round by its own clock; none on simulated tasks and without deadline."""
    active_at: datetime
    """When something was last heard from its clients."""
    ended_at: datetime | None
    outcome: str | None
    """Why it failed, as a cause."""
    selected: int
    received: int
    distribution_ns: int | None
    elapsed_ns: int | None
    upper_bound: int | None
    duration_s: float | None
    """Of the task's clock, from round time 0 until the model was aggregated or the round given up."""

    @property
    def is_open(self) -> bool:
        """Whether something can still happen to it."""
        return bool(ROUND_MOVES[self.state])


class Timing(StrEnum):
    """How an upload lies to its slot."""

    IN_TIME = "in time"
    DEADLINE_PASSED = "deadline passed"
    SLOT_NOT_OPEN = "slot not open"
    SLOT_CLOSED = "slot closed"


def judge_upload(terms: TaskTerms, slot: Slot, elapsed_ns: int) -> Timing:
    """Whether an upload that ends at this round time counts."""
    deadline_ns = terms.upload_deadline_ns
    if deadline_ns is not None and elapsed_ns >= deadline_ns:
        return Timing.DEADLINE_PASSED
    if terms.slot_enforcement is SlotEnforcement.STRICT:
        grace_ns = to_ns(terms.slot_grace_s)
        if elapsed_ns < slot.window_start_ns - grace_ns:
            return Timing.SLOT_NOT_OPEN
        if elapsed_ns > slot.window_end_ns + grace_ns:
            return Timing.SLOT_CLOSED
    return Timing.IN_TIME
