"""What a task page is asked to show: which tasks beside its own, and which accuracies as thresholds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Query

from services.contract.fields import TaskId

MOST_OTHERS = 5
"""As many tasks as there are colours to tell them apart, less the page's own."""
MOST_THRESHOLDS = 4
_LONGEST_NUMBER = 32


@dataclass(frozen=True)
class Comparison:
    """The choices in the address of a task page."""

    others: Sequence[str]
    """Ids of tasks, each once."""
    thresholds: Sequence[float]
    """From low to high; empty if none was asked for."""

    @property
    def query(self) -> dict[str, Sequence[object]]:
        """The same, for addresses."""
        chosen = {"with": self.others, "threshold": self.thresholds}
        return {name: values for name, values in chosen.items() if values}


async def _read_comparison(
    others: Annotated[list[TaskId], Query(alias="with")] = [],  # noqa: B006 - FastAPI copies it
    threshold: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Comparison:
    """Fields of the form that were left empty do not count."""
    asked = list(dict.fromkeys(others))
    if len(asked) > MOST_OTHERS:
        raise HTTPException(422, f"Compare with at most {MOST_OTHERS} other tasks.")
    thresholds = sorted({_read_threshold(text) for text in threshold if text.strip()})
    if len(thresholds) > MOST_THRESHOLDS:
        raise HTTPException(422, f"There can be at most {MOST_THRESHOLDS} thresholds.")
    return Comparison(asked, thresholds)


def _read_threshold(text: str) -> float:
    try:
        value = float(text) if len(text) <= _LONGEST_NUMBER else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise HTTPException(422, "A threshold is an accuracy: a number above 0, and at most 1.")
    return value


ComparisonDep = Annotated[Comparison, Depends(_read_comparison)]
