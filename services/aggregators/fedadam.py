"""FedAdam: Adam on the server (Reddi et al., 2021), with the bias correction of Flower."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.aggregators.server_optimizer import Moments, ServerOptimizer
from services.domain.parameters import parameter
from services.tensors.blocks import FloatArray


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """The average of past steps, divided by the root of the average of their squares."""

    summary: ClassVar[str] = "Adam on the server, with the weighted average step as gradient."
    moments: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")

    beta_1: float = parameter(0.9, ge=0, lt=1, description="The weight of the past in the average step.")
    beta_2: float = parameter(0.99, ge=0, lt=1, description="The weight of the past in the average square.")
    tau: float = parameter(
        1e-3, gt=0, le=100, description="Added to the root of the average square; larger adapts less."
    )
    learning_rate: float = parameter(0.1, gt=0, le=100, description="By which the step is multiplied.")

    def step(self, average_step: FloatArray, moments: Moments, rounds: int) -> FloatArray:
        """The first moment divided by the root of the second."""
        first, second = moments["first_moment"], moments["second_moment"]
        first *= self.beta_1
        first += (1 - self.beta_1) * average_step
        second += (1 - self.beta_2) * self.growth(second, average_step**2)
        return self.rate(rounds) * first / (np.sqrt(second) + self.tau)

    def growth(self, second: FloatArray, square: FloatArray) -> FloatArray:
        """By what the second moment grows, times 1 - ``beta_2``."""
        return square - second

    def rate(self, rounds: int) -> float:
        """The learning rate, corrected for moments that begin with 0. Flower counts one more round."""
        exponent = rounds + 1
        return self.learning_rate * math.sqrt(1 - self.beta_2**exponent) / (1 - self.beta_1**exponent)
