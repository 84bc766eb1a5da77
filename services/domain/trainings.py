"""Hosted local training: what a worker does in a simulated client's place."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class TrainingState(StrEnum):
    """Where a hosted training is in its life."""

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
    """Which part of the task's data set the device holds."""
    state: TrainingState
    created_at: datetime
    ended_at: datetime | None
    digest: str | None
    size_bytes: int | None
    error: str | None
