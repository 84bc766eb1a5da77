"""How good a global model is."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Evaluation:
    """The measure of one version of a model on the task's validation data."""

    version: int
    accuracy: float
    loss: float | None
    """None if it is not finite: the model has diverged."""
    samples: int
    evaluated_at: datetime
