"""The plain average: every client counts the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from services.aggregators.aggregation import State
from services.aggregators.updates import ModelReader, RoundUpdates
from services.aggregators.weighted import average
from services.tensors.blocks import ModelBuffer


@dataclass(frozen=True)
class UniformAverage:
    """Adds up the clients' numbers, and divides by the number of clients."""

    summary: ClassVar[str] = "The plain average of the updates: every client counts the same."
    takes_sparse: ClassVar[bool] = True
    averages_steps: ClassVar[bool] = True
    min_updates: ClassVar[int] = 1

    def weights(self, data_samples: Sequence[int]) -> list[int]:
        """1 for everybody."""
        return [1] * len(data_samples)

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The average."""
        return average(current_model, updates.blocks(), list(updates)), state
