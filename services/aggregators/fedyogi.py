"""FedYogi: Yogi on the server (Reddi et al., 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.aggregators.fedadam import FedAdam
from services.domain.parameters import parameter
from services.tensors.blocks import FloatArray


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """As FedAdam, but the second moment changes by the new square only, without bias correction."""

    summary: ClassVar[str] = "Yogi on the server, with the weighted average step as gradient."

    learning_rate: float = parameter(0.01, gt=0, le=100, description="By which the step is multiplied.")

    def growth(self, second: FloatArray, square: FloatArray) -> FloatArray:
        """The new square, added or subtracted."""
        grown: FloatArray = square * np.sign(square - second)
        return grown

    def rate(self, rounds: int) -> float:  # noqa: ARG002 - FedAdam needs it
        """The learning rate."""
        return self.learning_rate
