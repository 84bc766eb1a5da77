"""A round: its terms, states, candidates and slots, and the check whether an upload is in time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

from services.domain.deadlines import DeadlinePoint
from services.domain.nanoseconds import to_ns
from services.domain.tasks import DeadlineMode, Dispatch, SlotEnforcement, TaskTerms


@dataclass(frozen=True)
class RoundTerms:
    """The terms of one round, fixed when it opens."""

    policy: str
    has_deadline: bool
    """Whether the policy honours the deadline; otherwise the round waits for all selected clients."""
    round_deadline_s: float
    selection_s: float
    aggregation_s: float
    upload_size_bytes: int
    """Size of an uploaded update in the schedule."""
    download_size_bytes: int
    """Size of the distributed model in the schedule."""
    resource_blocks: int
    slot_enforcement: SlotEnforcement
    slot_grace_s: float
    # New fields go here and need a default, which older rounds get.
    policy_parameters: Mapping[str, Any] = field(default_factory=dict)
    decayed_learning_rate: float | None = None
    """Of a task whose learning rate decays with time; none: it follows from the number of the round."""
    update_encoding: str = "float32"
    model_encoding: str = "float32"
    topk_fraction: float = 0.1
    deadline_mode: DeadlineMode = DeadlineMode.FIXED
    noise_scale: float | None = None
    """By which an adaptive deadline was chosen."""
    deadline_tradeoff: tuple[DeadlinePoint, ...] | None = None
    """The deadlines that were compared."""
    dispatch: Dispatch = Dispatch.SCHEDULED
    planning_factor: float = 1.0

    @property
    def deadline_s(self) -> float | None:
        """The deadline, or none without a deadline."""
        return self.round_deadline_s if self.has_deadline else None

    @property
    def upload_deadline_ns(self) -> int | None:
        """The upload deadline in round time; none without a deadline."""
        if not self.has_deadline:
            return None
        return to_ns(self.round_deadline_s) - to_ns(self.aggregation_s)

    @property
    def overhead_ns(self) -> int:
        """The time reserved for Client Selection and Aggregation."""
        return to_ns(self.selection_s) + to_ns(self.aggregation_s)

    def simulated_cost_s(self, duration_s: float, *, is_complete: bool) -> float:
        """The simulated time that a round costs: its full deadline, as the paper counts.

        Clients wait for the next round, even if the last upload ends earlier. Without a deadline the cost is
        the duration. A round with an adaptive deadline ends when every slot has its outcome.
        """
        if not self.has_deadline:
            return duration_s
        if self.deadline_mode is DeadlineMode.ADAPTIVE and is_complete:
            return min(duration_s, self.round_deadline_s)
        return self.round_deadline_s


def terms_of_round(
    task: TaskTerms,
    model_size_bytes: int,
    *,
    number: int = 1,
    elapsed_s: float = 0.0,
    upload_size_bytes: int | None = None,
    download_size_bytes: int | None = None,
) -> RoundTerms:
    """The terms of a task's round with this number, which opens after this much of the task's time.

    Encoded transfers have sizes of their own.
    """
    size_bytes = task.model_size_bytes or model_size_bytes
    decayed = None if task.learning_rate_decay_s is None else task.learning_rate_of(number, elapsed_s)
    return RoundTerms(
        policy=task.policy,
        has_deadline=task.has_deadline,
        round_deadline_s=task.round_deadline_s,
        selection_s=task.selection_s,
        aggregation_s=task.aggregation_s,
        upload_size_bytes=upload_size_bytes or size_bytes,
        download_size_bytes=download_size_bytes or size_bytes,
        resource_blocks=task.resource_blocks,
        slot_enforcement=task.slot_enforcement,
        slot_grace_s=task.slot_grace_s,
        policy_parameters=task.policy_parameters,
        decayed_learning_rate=decayed,
        update_encoding=task.update_encoding,
        model_encoding=task.model_encoding,
        topk_fraction=task.topk_fraction,
        deadline_mode=task.deadline_mode,
        dispatch=task.dispatch,
        planning_factor=task.planning_factor,
    )


class RoundState(StrEnum):
    """The state of a round."""

    REQUESTING = "requesting"
    SCHEDULED = "scheduled"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    AGGREGATED = "aggregated"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDINGS = frozenset({RoundState.FAILED, RoundState.CANCELLED})

ROUND_TRANSITIONS: Mapping[RoundState, frozenset[RoundState]] = {
    RoundState.REQUESTING: frozenset({RoundState.SCHEDULED}) | _ENDINGS,
    RoundState.SCHEDULED: frozenset({RoundState.COLLECTING, RoundState.AGGREGATING}) | _ENDINGS,
    RoundState.COLLECTING: frozenset({RoundState.AGGREGATING}) | _ENDINGS,
    RoundState.AGGREGATING: frozenset({RoundState.AGGREGATED}) | _ENDINGS,
    RoundState.AGGREGATED: frozenset(),
    RoundState.FAILED: frozenset(),
    RoundState.CANCELLED: frozenset(),
}
"""Allowed transitions from each state."""

OPEN_STATES = tuple(state for state, following in ROUND_TRANSITIONS.items() if following)
UPLOAD_STATES = (RoundState.SCHEDULED, RoundState.COLLECTING)
BLOCK_HOLDING_STATES = (RoundState.REQUESTING, *UPLOAD_STATES)
"""In which a round on the wall clock holds resource blocks."""

MAX_REJECTION_EVENTS_PER_SLOT = 10
MAX_REJECTION_EVENTS_PER_ROUND = 1000
"""Further rejected uploads are counted in their slots without an event: events are stored for weeks."""


class CandidateOutcome(StrEnum):
    """The outcome of a candidate."""

    ASKED = "ASKED"
    """It was asked to report its resources; the report window is open."""
    SELECTED = "SELECTED"
    DEADLINE = "DEADLINE"
    """The round would miss its deadline with this client."""
    NO_DATA = "NO_DATA"
    """It has no samples."""
    TOO_SLOW = "TOO_SLOW"
    """Without a deadline: the round would exceed the longest duration, about 18 years."""
    NOT_CHOSEN = "NOT_CHOSEN"
    """It would fit, but the policy chose others."""
    NO_REPORT = "NO_REPORT"
    """It has no fresh report."""
    BUSY = "BUSY"
    """It has an open slot in a round of another task."""
    COOLDOWN = "COOLDOWN"
    """It did not deliver in its last rounds; for some rounds it is not drawn."""
    MAX_SHARE = "MAX_SHARE"
    """It was selected in the largest share of the task's rounds that a client may have."""


PASSED_OVER = (CandidateOutcome.BUSY, CandidateOutcome.COOLDOWN, CandidateOutcome.MAX_SHARE)
"""Another client was drawn in the place of these."""


class SlotOutcome(StrEnum):
    """The outcome of a slot."""

    PENDING = "pending"
    RECEIVED = "received"
    LATE = "late"
    """The update arrived after its deadline."""
    REJECTED = "rejected"
    """The uploads were rejected, or the update was discarded as an outlier."""
    MISSED = "missed"
    """No upload arrived."""
    DECLINED = "declined"
    """The client declined; the slot is free."""
    REFUSED = "refused"
    """Its update was ready too late for its throughput; it was not granted the channel."""


DECLINES_PER_MISS = 3
"""So many declined slots in a row count as one missed slot."""


class Candidate(NamedTuple):
    """A client drawn for a round: its report, the estimated times and its outcome."""

    position: int
    client_id: str
    cell_id: str
    outcome: CandidateOutcome
    throughput_bps: float | None = None
    compute_samples_per_s: float | None = None
    data_samples: int | None = None
    update_ns: int | None = None
    upload_ns: int | None = None
    cost_ns: int | None = None
    expected_throughput_bps: float | None = None
    """What the round was planned with; none: with what the client reported."""
    expected_compute_samples_per_s: float | None = None


@dataclass(frozen=True)
class RoundCell:
    """A cell of a round: the resource blocks that the round has there, and how long its schedule takes."""

    cell_id: str
    resource_block_first: int
    resource_block_count: int
    distribution_ns: int | None = None
    """None: clients have not been selected yet."""
    elapsed_ns: int | None = None


@dataclass(frozen=True)
class Slot:
    """The slot of a selected client: the plan (windows in round time) and the actual outcome."""

    client_id: str
    cell_id: str
    order: int
    """In its cell."""
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
    """When the last byte of its update was read; in a pending slot the update is being checked."""
    elapsed_s: float | None = None
    """Round time at the end of its upload."""
    actual_update_s: float | None = None
    actual_upload_s: float | None = None
    rejections: int = 0
    last_rejection: str | None = None
    weight: int | None = None
    """Weight of its update in the aggregation."""
    update_norm: float | None = None
    """Euclidean norm of the change of the parameters."""
    statistics_norm: float | None = None
    """Euclidean norm of the change of the running statistics."""
    update_scale: float | None = None
    """Factor applied to the change of the parameters; 1 if it was not clipped."""
    statistics_scale: float | None = None
    ready_ns: int | None = None
    """Round time at which its update was ready (``dispatch: on_ready``)."""
    fresh_upload_ns: int | None = None
    """Expected upload by the throughput that it sent when it was ready."""
    granted_ns: int | None = None
    """Round time at which the channel was granted to it."""
    grant_expires_ns: int | None = None
    """When the grant lapses; none: it does not hold the channel."""
    lapses: int = 0
    """How many of its grants have lapsed."""
    replaces: str | None = None
    """The client in whose place it was selected during the round."""

    @property
    def arrived_in_time(self) -> bool:
        """Whether its update was received, even if it was left out of the model later."""
        left_out = self.outcome is SlotOutcome.REJECTED and self.elapsed_s is not None
        return self.outcome is SlotOutcome.RECEIVED or left_out

    @property
    def ended_in_time(self) -> bool:
        """Whether it had its outcome before the deadline."""
        return self.arrived_in_time or self.outcome in (SlotOutcome.DECLINED, SlotOutcome.REFUSED)


class SlotChange(TypedDict, total=False):
    """Fields of a slot to be set."""

    outcome: SlotOutcome
    model_fetched_at: datetime
    uploaded_at: datetime | None
    elapsed_s: float
    actual_update_s: float | None
    actual_upload_s: float | None
    rejections: int
    last_rejection: str
    weight: int
    update_norm: float
    statistics_norm: float
    update_scale: float
    statistics_scale: float
    ready_ns: int | None
    fresh_upload_ns: int | None
    granted_ns: int | None
    grant_expires_ns: int | None
    lapses: int


@dataclass(frozen=True)
class AcceptedUpdate:
    """An accepted update; its bytes are in the model store under their digest."""

    client_id: str
    digest: str
    size_bytes: int
    data_samples: int
    received_at: datetime


@dataclass(frozen=True)
class Round:
    """A round."""

    serial: int
    round_id: str
    task_serial: int
    task_id: str
    number: int
    state: RoundState
    terms: RoundTerms
    model_version: int
    clients: int
    """K: the number of eligible clients."""
    asked: int
    """⌈K·C⌉: the number of drawn clients."""
    opened_at: datetime
    window_ends_at: datetime | None
    started_at: datetime | None
    """Round time 0: when Client Selection began."""
    upload_deadline_at: datetime | None
    """When the service closes the round; none on simulated tasks and without a deadline."""
    active_at: datetime
    """Time of the last activity of its clients."""
    ended_at: datetime | None
    outcome: str | None
    """Code of the failure."""
    selected: int
    received: int
    distribution_ns: int | None
    elapsed_ns: int | None
    upper_bound: int | None
    duration_s: float | None
    """Duration by the task's clock, from round time 0 to the end of the round."""
    task_elapsed_s: float | None
    """Elapsed time of the task at the end of the round."""
    median_update_norm: float | None = None
    """Median of the update norms in its model; the limits of later rounds depend on it."""
    median_statistics_norm: float | None = None
    latest_ns: int | None = None
    """Round time of the last call that said it, on simulated tasks with ``dispatch: on_ready``."""

    @property
    def is_open(self) -> bool:
        """Whether the round has not ended."""
        return bool(ROUND_TRANSITIONS[self.state])

    def learning_rate(self, task: TaskTerms) -> float:
        """For local updates in this round of the task."""
        kept = self.terms.decayed_learning_rate
        return task.learning_rate_of(self.number, 0.0) if kept is None else kept


class RoundChange(TypedDict, total=False):
    """Fields of a round to be set."""

    state: RoundState
    terms: RoundTerms
    started_at: datetime
    upload_deadline_at: datetime | None
    active_at: datetime
    ended_at: datetime | None
    outcome: str | None
    selected: int
    received: int
    distribution_ns: int
    elapsed_ns: int
    upper_bound: int
    duration_s: float
    task_elapsed_s: float
    median_update_norm: float
    median_statistics_norm: float
    latest_ns: int


class Timing(StrEnum):
    """The timing of an upload relative to its slot and the deadline."""

    IN_TIME = "in time"
    DEADLINE_PASSED = "deadline passed"
    SLOT_NOT_OPEN = "slot not open"
    SLOT_CLOSED = "slot closed"


def may_have_waited(terms: RoundTerms, slot: Slot, began_ns: int) -> bool:
    """Whether a client whose upload began at this round time may have waited for its slot or the channel."""
    if terms.dispatch is Dispatch.ON_READY:
        return True
    grace_s = terms.slot_grace_s if terms.slot_enforcement is SlotEnforcement.STRICT else 0.0
    return began_ns >= slot.window_start_ns - to_ns(grace_s)


def classify_upload(terms: RoundTerms, slot: Slot, elapsed_ns: int) -> Timing:
    """Classify an upload that ends at this round time."""
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
