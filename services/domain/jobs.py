"""Jobs, hosted trainings, and the workers that do them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class JobKind(StrEnum):
    """The kind of a job."""

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
"""The queue of each kind: hosts with a GPU consume ``train``, any host ``aggregate``."""


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    """A job. ``subject`` has the ids of its task, round, training or model version."""

    job_id: str
    kind: JobKind
    state: JobState
    task_serial: int
    round_serial: int | None
    subject: Mapping[str, str]
    attempts: int
    max_attempts: int
    token: int
    """Fencing token, incremented by every lease; results with an older token are discarded."""
    lease_expires_at: datetime | None
    published_at: datetime | None
    created_at: datetime
    error: str | None

    @property
    def attempts_left(self) -> int:
        """The number of remaining attempts."""
        return self.max_attempts - self.attempts


class TrainingState(StrEnum):
    """The state of a hosted training."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Training:
    """One simulated client's local update in a round."""

    training_id: str
    round_id: str
    client_id: str
    partition: int
    """Index of the device's partition of the data set."""
    state: TrainingState
    created_at: datetime
    ended_at: datetime | None
    digest: str | None
    size_bytes: int | None
    error: str | None


_MAX_DESCRIBED = 5


@dataclass(frozen=True)
class WorkerIdentity:
    """A running worker. After a restart, possibly with other settings, it is another worker."""

    worker_id: str
    host: str
    pid: int
    queues: Sequence[str]


@dataclass(frozen=True)
class Worker:
    """The last heartbeat of a worker."""

    worker_id: str
    host: str
    pid: int
    queues: Sequence[str]
    problems: Sequence[str]
    """Problems with its data sets, its device or its model store."""
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    """The worker counts as dead from then on, unless it sends another heartbeat before."""


@dataclass(frozen=True)
class Refusal:
    """A job that a worker put back because its host cannot do it."""

    job_id: str
    worker_id: str
    error: str
    refused_at: datetime
    expires_at: datetime
    """Until then this worker does not take the job."""


def has_other_worker(
    queue: str, live: Sequence[Worker], refused_by: Collection[str], asking: WorkerIdentity
) -> bool:
    """Whether another live worker consumes the queue and has not refused the job."""
    return any(
        queue in worker.queues and worker.worker_id not in refused_by and worker.worker_id != asking.worker_id
        for worker in live
    )


def describe_problems(live: Sequence[Worker], refusals: Sequence[Refusal]) -> str:
    """The problems of live workers by host, as one line; empty if there are none."""
    lines = []
    for worker in live:
        refused = (refusal.error for refusal in refusals if refusal.worker_id == worker.worker_id)
        if problems := dict.fromkeys((*worker.problems, *refused)):
            lines.append(f"{worker.host} (process {worker.pid}): {'; '.join(problems)}")
    if len(lines) > _MAX_DESCRIBED:
        lines[_MAX_DESCRIBED:] = [f"and {len(lines) - _MAX_DESCRIBED} more workers"]
    return " | ".join(lines)
