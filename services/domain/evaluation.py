"""How good a global model is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

PARTS = 4
"""A version is measured in so many parts, by as many workers as are free."""


@dataclass(frozen=True)
class Score:
    """How a model did on some samples; scores add up."""

    samples: int
    correct: int
    loss_sum: float | None
    """None if it is not finite: the model has diverged."""


@dataclass(frozen=True)
class Evaluation:
    """The measure of one version of a model on the task's validation data."""

    version: int
    accuracy: float
    loss: float | None
    """None if it is not finite: the model has diverged."""
    samples: int
    evaluated_at: datetime


def sum_up(version: int, scores: Sequence[Score], now: datetime) -> Evaluation:
    """The measure on all parts of the validation data."""
    samples = sum(score.samples for score in scores)
    losses = [score.loss_sum for score in scores if score.loss_sum is not None]
    return Evaluation(
        version,
        accuracy=sum(score.correct for score in scores) / samples,
        loss=math.fsum(losses) / samples if len(losses) == len(scores) else None,
        samples=samples,
        evaluated_at=now,
    )
