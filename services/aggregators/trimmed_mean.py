"""The trimmed mean of every number: without the largest and the smallest values (Yin et al., 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from services.aggregators.aggregation import State
from services.aggregators.updates import ModelReader, RoundUpdates
from services.domain.parameters import parameter
from services.tensors.blocks import FloatArray, ModelBuffer

_COLUMNS = 512
"""Numbers that are sorted at once: their values, of a hundred clients, fit into the core's cache."""
_PADDING = 16
"""Rows whose lengths are a power of two would share the same lines of the cache."""


@dataclass(frozen=True)
class TrimmedMean:
    """Sorts the clients' values of every number and averages those in the middle."""

    summary: ClassVar[str] = (
        "The mean of every number without its largest and smallest values; every client counts the same."
    )
    takes_sparse: ClassVar[bool] = False
    averages_steps: ClassVar[bool] = False
    min_updates: ClassVar[int] = 1

    trim: float = parameter(
        0.2,
        ge=0,
        lt=0.5,
        description="The share of the values that is left out at each end, rounded down to whole clients.",
    )

    def weights(self, data_samples: Sequence[int]) -> list[int]:
        """1 for everybody."""
        return [1] * len(data_samples)

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The trimmed mean."""
        return trimmed_mean(current_model, updates, int(self.trim * len(updates))), state


def trimmed_mean(current_model: ModelReader, updates: RoundUpdates, cut: int) -> ModelBuffer:
    """The mean of every number without its ``cut`` largest and smallest values.

    The values of one block are in memory at a time: 128 KiB for each update, whatever the model's size.
    """
    model = ModelBuffer(current_model.layout)
    largest: dict[type[np.floating[Any]], int] = {}
    for block in current_model.blocks:
        largest[block.number_type] = max(largest.get(block.number_type, 0), block.size)
    rooms = {dtype: np.empty((len(updates), size + _PADDING), dtype) for dtype, size in largest.items()}
    for block in updates.blocks():
        values = rooms[block.number_type][:, : block.size]
        for row, update in zip(values, updates, strict=True):
            row[:] = update.read(block)
        model.write(block, _means_of_middle(values, cut))
    return model


def _means_of_middle(values: FloatArray, cut: int) -> FloatArray:
    clients, size = values.shape
    means = np.empty(size)
    for first in range(0, size, _COLUMNS):
        columns = np.ascontiguousarray(values[:, first : first + _COLUMNS].T)
        columns.sort(axis=1)  # for so few values faster than numpy's partition
        middle = columns[:, cut : clients - cut]
        np.mean(middle, axis=1, dtype=np.float64, out=means[first : first + _COLUMNS])
    return means
