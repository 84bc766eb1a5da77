"""FL: the original protocol, without a deadline."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.domain.resources import Positions
from services.domain.selection.policy import Candidates, SelectionPolicy


@dataclass(frozen=True)
class FL(SelectionPolicy):
    """Takes every candidate and waits for all of them."""

    summary: ClassVar[str] = "everyone in random order, no deadline"
    honours_deadline: ClassVar[bool] = False

    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """All of them, in random order."""
        return rng.permutation(len(candidates))
