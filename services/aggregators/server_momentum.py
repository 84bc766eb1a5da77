"""Server momentum: the model goes on in the direction of the last rounds (FedAvgM; Hsu et al., 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from services.aggregators.server_optimizer import Moments, ServerOptimizer
from services.domain.parameters import parameter
from services.tensors.blocks import FloatArray


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """The step is the average step and ``momentum`` times the step before, times the learning rate."""

    summary: ClassVar[str] = "The weighted average with momentum on the server (FedAvgM)."
    moments: ClassVar[tuple[str, ...]] = ("velocity",)

    momentum: float = parameter(
        0.9, ge=0, lt=1, description="How much of the last step is added to the average step."
    )
    learning_rate: float = parameter(1.0, gt=0, le=100, description="By which the step is multiplied.")

    def step(self, average_step: FloatArray, moments: Moments, rounds: int) -> FloatArray:  # noqa: ARG002
        """The velocity times the learning rate."""
        velocity = moments["velocity"]
        velocity *= self.momentum
        velocity += average_step
        return self.learning_rate * velocity
