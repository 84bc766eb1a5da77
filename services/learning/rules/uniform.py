"""The plain average: every client counts the same."""

from collections.abc import Sequence

from services.learning.rules.weighted import WeightedAverage


class UniformAverage(WeightedAverage):
    """Sums up the clients' numbers, and divides by their number."""

    def __init__(self, data_samples: Sequence[int]) -> None:
        super().__init__([1] * len(data_samples))
