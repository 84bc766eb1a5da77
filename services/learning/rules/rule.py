"""What a rule of aggregation is."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor


class Rule(Protocol):
    """Makes one model out of many, a run of numbers at a time."""

    def __init__(self, data_samples: Sequence[int]) -> None:
        """Expect clients with so many samples each, in slot order."""

    def combine(self, values: Iterable[Tensor]) -> Tensor:
        """The numbers of the new model, from what each client has in their place, in double precision.

        A value is only lent until the next one is asked for.
        """
        ...
