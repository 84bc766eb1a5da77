"""How far a trial goes: to a moment of its simulated time, to an accuracy, or to whichever comes first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from client_sim.reproduction.rows import FINAL_MINUTES
from services.errors import FedCSError


class UntilError(FedCSError):
    """It is not clear how far trials are to go."""

    cause: ClassVar[str] = "BAD_UNTIL"


@dataclass(frozen=True)
class Until:
    """Where a trial stops; it can go on from there later."""

    minutes: float
    accuracy: float | None

    def reached(self, elapsed_s: float, best_accuracy: float | None, round_s: float) -> bool:
        """Whether a trial with this best accuracy is there, or would be past it with another round."""
        if self.accuracy is not None and best_accuracy is not None and best_accuracy >= self.accuracy:
            return True
        return elapsed_s + round_s > 60.0 * self.minutes

    def __str__(self) -> str:
        by_time = f"{self.minutes:g} min"
        return by_time if self.accuracy is None else f"accuracy {self.accuracy:g} or {by_time}"


def parse_until(texts: Sequence[str]) -> Until:
    """Read ``120min`` and ``0.85``; one of each at most."""
    minutes = [_number(text, text.removesuffix("min")) for text in texts if text.endswith("min")]
    accuracies = [_number(text, text) for text in texts if not text.endswith("min")]
    if len(minutes) > 1 or len(accuracies) > 1:
        raise UntilError("--until can be given twice: once as a time and once as an accuracy")
    for accuracy in accuracies:
        if not 0 < accuracy <= 1:
            raise UntilError(
                f"--until {accuracy:g}: an accuracy is above 0 and at most 1; write a time as 120min"
            )
    for time in minutes:
        if not 0 < time <= FINAL_MINUTES:
            raise UntilError(f"--until {time:g}min: a trial has {FINAL_MINUTES} simulated minutes")
    return Until(minutes[0] if minutes else FINAL_MINUTES, accuracies[0] if accuracies else None)


def _number(text: str, digits: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UntilError(f"--until {text}: write a simulated time as 120min, or an accuracy as 0.85")
    return number
