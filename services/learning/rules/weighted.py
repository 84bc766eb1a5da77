"""FedAvg: the average weighted by each client's number of samples."""

from collections.abc import Iterable, Sequence
from statistics import median_low

import torch
from torch import Tensor

_MOST_TIMES_MEDIAN = 10
"""Clients count their samples themselves. Nobody counts more than this many times the median client."""


class WeightedAverage:
    """Sums up the clients' numbers, each times the client's samples, and divides by all samples.

    In this order sums are as good as exact, so that it does not matter who adds up in which order.
    """

    def __init__(self, data_samples: Sequence[int]) -> None:
        most = _MOST_TIMES_MEDIAN * median_low(data_samples)
        self._counts = [min(count, most) for count in data_samples]

    def combine(self, values: Iterable[Tensor]) -> Tensor:
        """The average."""
        total = torch.zeros((), dtype=torch.float64)
        for count, value in zip(self._counts, values, strict=True):
            total = total.add_(value, alpha=count) if total.dim() else value * count
        return total.div_(sum(self._counts))
