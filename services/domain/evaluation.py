"""How good a global model is."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Evaluation:
    """The measure of one version of a model on the task's validation data."""

    version: int
    accuracy: float
    loss: float
    samples: int
    evaluated_at: datetime
