"""A training task: what the operator sets for it, and the states of its life."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from services.domain.nanoseconds import to_ns


class TaskState(StrEnum):
    """Where a task is in its life."""

    INITIALIZING = "initializing"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


TASK_MOVES: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.INITIALIZING: frozenset({TaskState.READY, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.READY: frozenset({TaskState.RUNNING, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset({TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.FINISHED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Which state may follow which."""


class Clock(StrEnum):
    """Whose time a task's deadlines are measured in."""

    WALL = "wall"
    """The service's own."""
    SIMULATED = "simulated"
    """The simulator's: elapsed time comes with each request."""


class SlotEnforcement(StrEnum):
    """When a selected client may upload."""

    DEADLINE = "deadline"
    """Any time before the upload deadline."""
    STRICT = "strict"
    """In its own window only, give or take the grace period."""


class AggregationRule(StrEnum):
    """How updates become the next model."""

    WEIGHTED = "weighted"
    """The average weighted by each client's number of samples."""
    UNIFORM = "uniform"
    """The plain average."""


class PartitionScheme(StrEnum):
    """How a simulated device's samples are drawn from the data set."""

    IID = "iid"
    """From all of it."""
    NON_IID = "non_iid"
    """From two of its classes."""


@dataclass(frozen=True)
class TaskTerms:
    """What the operator sets for a task."""

    name: str
    model: str
    dataset: str | None
    partition_scheme: PartitionScheme
    local_epochs: int
    batch_size: int
    learning_rate: float
    learning_rate_decay: float
    aggregation: AggregationRule
    policy: str
    round_deadline_s: float
    final_deadline_s: float | None
    request_fraction: float
    target_accuracy: float | None
    clock: Clock
    report_max_age_s: float
    report_window_s: float
    model_size_bytes: int | None
    selection_s: float
    aggregation_s: float
    resource_blocks: int
    auto_advance: bool
    seed: int
    labels: Mapping[str, str]
    min_clients: int
    min_updates: int
    slot_enforcement: SlotEnforcement
    slot_grace_s: float
    idle_timeout_s: float
    max_update_norm: float | None
    """Longer steps of clients are shortened to this."""

    @property
    def has_deadline(self) -> bool:
        """The original protocol, ``fl``, waits for everyone."""
        return self.policy != "fl"

    @property
    def upload_deadline_ns(self) -> int | None:
        """In round time, when an upload must have ended; none where there is no deadline."""
        if not self.has_deadline:
            return None
        return to_ns(self.round_deadline_s) - to_ns(self.aggregation_s)


@dataclass(frozen=True)
class Task:
    """A task as it stands."""

    serial: int
    task_id: str
    state: TaskState
    terms: TaskTerms
    created_at: datetime
    ended_at: datetime | None
    outcome: str | None
    """Why it ended, in a sentence."""
    model_version: int | None
    """The newest version of its model."""
    rounds: int
    """How many have been opened."""
    elapsed_s: float
    """Of the task's own clock, at the end of the newest round that is over."""
    first_round_at: datetime | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it."""
        return not TASK_MOVES[self.state]

    def fits_another_round(self, elapsed_s: float) -> bool:
        """Whether a round that starts after ``elapsed_s`` ends by the final deadline."""
        if self.terms.final_deadline_s is None:
            return True
        needed_s = self.terms.round_deadline_s if self.terms.has_deadline else 0.0
        return to_ns(elapsed_s) + to_ns(needed_s) <= to_ns(self.terms.final_deadline_s)
