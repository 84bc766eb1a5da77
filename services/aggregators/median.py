"""The median of every number (Yin et al., 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from services.aggregators.aggregation import State
from services.aggregators.trimmed_mean import trimmed_mean
from services.aggregators.updates import ModelReader, RoundUpdates
from services.tensors.blocks import ModelBuffer


@dataclass(frozen=True)
class Median:
    """Takes the value in the middle of every number; of an even number of clients, the mean of the two."""

    summary: ClassVar[str] = "The median of every number; every client counts the same."
    takes_sparse: ClassVar[bool] = False
    averages_steps: ClassVar[bool] = False
    min_updates: ClassVar[int] = 1

    def weights(self, data_samples: Sequence[int]) -> list[int]:
        """1 for everybody."""
        return [1] * len(data_samples)

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The median, which is the mean without all values but the one or two in the middle."""
        return trimmed_mean(current_model, updates, (len(updates) - 1) // 2), state
