"""Work for the trainer: what kinds there are, and the lease under which one worker does it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class JobKind(StrEnum):
    """What a worker is asked to do."""

    INITIALIZE_MODEL = "initialize_model"
    TRAIN_CLIENT = "train_client"
    AGGREGATE_ROUND = "aggregate_round"
    EVALUATE_MODEL = "evaluate_model"


QUEUES: Mapping[JobKind, str] = {
    JobKind.INITIALIZE_MODEL: "train",
    JobKind.TRAIN_CLIENT: "train",
    JobKind.AGGREGATE_ROUND: "aggregate",
    JobKind.EVALUATE_MODEL: "train",
}
"""Who takes what: hosts with a GPU the training, any host the aggregation."""


class JobState(StrEnum):
    """Where a job is in its life."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    """A piece of work. ``subject`` names what it is about: ids of a task, a round, a training, a version."""

    job_id: str
    kind: JobKind
    state: JobState
    task_serial: int
    round_serial: int | None
    subject: Mapping[str, str]
    attempts: int
    max_attempts: int
    token: int
    """Rises with every lease; what is done under an older one does not count."""
    lease_expires_at: datetime | None
    published_at: datetime | None
    created_at: datetime
    error: str | None

    @property
    def attempts_left(self) -> int:
        """How often it may still be tried."""
        return self.max_attempts - self.attempts
