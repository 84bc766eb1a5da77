"""A selection policy as an extension would write it: one class, with a parameter of its own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.domain.parameters import parameter
from services.domain.resources import Positions
from services.domain.selection import Candidates, SelectionPolicy


@dataclass(frozen=True)
class MostReliable(SelectionPolicy):
    """Takes the clients that missed fewest of the rounds they were selected in."""

    summary: ClassVar[str] = "those who missed least"
    honours_deadline: ClassVar[bool] = False
    uses_history: ClassVar[bool] = True

    clients: int = parameter(1, ge=1, description="How many.")

    def select(
        self,
        candidates: Candidates,
        available_ns: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> Positions:
        assert candidates.history is not None
        return np.argsort(candidates.history.missed, kind="stable")[: self.clients]
