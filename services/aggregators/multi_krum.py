"""Multi-Krum: the average of the updates that are nearest to their neighbours (Blanchard et al., 2017)."""

from dataclasses import dataclass
from typing import ClassVar

from services.aggregators.krum import Krum


@dataclass(frozen=True)
class MultiKrum(Krum):
    """Averages as many of the best updates as each has neighbours, n - f - 2.

    That is the largest number for which the result is shown to be robust (El Mhamdi et al., 2018).
    """

    summary: ClassVar[str] = "The plain average of the n - f - 2 updates nearest to their neighbours."

    def selected(self, neighbours: int) -> int:
        """As many as neighbours."""
        return neighbours
