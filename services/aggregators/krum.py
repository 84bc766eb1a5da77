"""Krum: the update that is nearest to its neighbours (Blanchard et al., 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.aggregators.aggregation import State
from services.aggregators.updates import ModelReader, RoundUpdates
from services.aggregators.weighted import average
from services.domain.parameters import parameter
from services.tensors.blocks import BLOCK_NUMBERS, FloatArray, ModelBuffer
from services.tensors.layout import TensorKind


@dataclass(frozen=True)
class Krum:
    """Takes the update with the smallest sum of squared distances to the n - f - 2 nearest others."""

    summary: ClassVar[str] = "The one update that is nearest to its neighbours."
    takes_sparse: ClassVar[bool] = False
    averages_steps: ClassVar[bool] = False

    byzantine: int = parameter(
        1,
        ge=0,
        le=1000,
        description="f, how many clients may be malicious; `min_updates` must be at least 2f + 3.",
    )

    @property
    def min_updates(self) -> int:
        """With fewer, f clients could have the smallest distances."""
        return 2 * self.byzantine + 3

    def weights(self, data_samples: Sequence[int]) -> list[int]:
        """1 for everybody."""
        return [1] * len(data_samples)

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The average of the selected updates; of one, that update."""
        readers = list(updates)
        neighbours = max(len(readers) - self.byzantine - 2, 1)
        scores = _scores(_squared_distances(current_model, updates), neighbours)
        best = np.argsort(scores, kind="stable")[: self.selected(neighbours)]
        selected = [readers[place] for place in sorted(best.tolist())]
        return average(current_model, updates.blocks(), selected), state

    def selected(self, neighbours: int) -> int:  # noqa: ARG002 - multi-krum needs it
        """How many updates are selected, if scores are sums over so many neighbours."""
        return 1


def _scores(squared_distances: FloatArray, neighbours: int) -> FloatArray:
    """Of each client, the sum over its nearest neighbours. What is not finite is infinitely far away."""
    others = np.nan_to_num(squared_distances, nan=np.inf, posinf=np.inf)
    np.fill_diagonal(others, -np.inf)  # comes first
    nearest: FloatArray = np.sort(others, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
    return nearest


def _squared_distances(current_model: ModelReader, updates: RoundUpdates) -> FloatArray:
    """Between any two clients, from one pass over the updates.

    Parameters and running statistics have other magnitudes, so each is measured in units of its own median
    step; counters do not take part. The steps of one block are in memory at a time, 256 KiB for each update,
    and a matrix of inner products.
    """
    steps = np.empty((len(updates), BLOCK_NUMBERS))
    products = {part: np.zeros((len(updates), len(updates))) for part in ("parameters", "statistics")}
    for block in updates.blocks():
        if block.kind is TensorKind.COUNTERS:
            continue
        own = current_model.read(block)
        of_block = steps[:, : block.size]
        for step, update in zip(of_block, updates, strict=True):
            np.subtract(update.read(block), own, out=step, dtype=np.float64)
        part = "parameters" if block.kind is TensorKind.PARAMETERS else "statistics"
        products[part] += of_block @ of_block.T
    return _distances(products["parameters"]) + _distances(products["statistics"])


def _distances(products: FloatArray) -> FloatArray:
    squares = np.diagonal(products)
    measured = squares[np.isfinite(squares) & (squares > 0)]
    unit = np.median(measured) if measured.size else 1.0
    distances: FloatArray = (squares[:, None] + squares - 2 * products) / unit
    return distances
