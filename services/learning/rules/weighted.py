"""FedAvg: the average weighted by each client's number of samples."""

from collections.abc import Iterable, Sequence
from statistics import median_low

import torch
from torch import Tensor

_MOST_TIMES_MEDIAN = 10
"""Clients count their samples themselves. Nobody counts more than this many times the median client."""


class WeightedAverage:
    """Sums up the clients' numbers, each times the client's share of all samples."""

    def __init__(self, data_samples: Sequence[int]) -> None:
        most = _MOST_TIMES_MEDIAN * median_low(data_samples)
        counts = [min(count, most) for count in data_samples]
        self._shares = [count / sum(counts) for count in counts]

    def combine(self, values: Iterable[Tensor]) -> Tensor:
        """The average."""
        total = torch.zeros((), dtype=torch.float64)
        for share, value in zip(self._shares, values, strict=True):
            total = total.add_(value, alpha=share) if total.dim() else value * share
        return total
