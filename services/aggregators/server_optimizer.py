"""What the adaptive server optimizers share: the average step of the clients is taken as a gradient.

Only floating-point parameters are optimized. Running statistics and whole numbers are averaged: a step beyond
the average could make a variance negative.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from services.aggregators.aggregation import State
from services.aggregators.updates import ModelReader, RoundUpdates
from services.aggregators.weighted import WeightedAverage, average_block
from services.tensors.blocks import Block, FloatArray, ModelBuffer
from services.tensors.layout import TensorKind

Moments: TypeAlias = Mapping[str, npt.NDArray[np.float64]]
"""The moments of some parameters, by name."""


@dataclass(frozen=True)
class ServerOptimizer(WeightedAverage):
    """Moves the model by what its moments make of the weighted average step.

    The state is a number for each moment and optimized parameter, in single precision, in the order of the
    blocks, and the number of rounds.
    """

    averages_steps: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]]
    """The names of its moments."""

    @abstractmethod
    def step(self, average_step: FloatArray, moments: Moments, rounds: int) -> FloatArray:
        """The step of some parameters; ``moments`` are changed in place. The first round is 1."""

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The next model, and the moments with which it was made."""
        model = ModelBuffer(current_model.layout)
        readers = list(updates)
        size = sum(block.size for block in current_model.blocks if _is_optimized(block))
        if state is None:
            state = {"rounds": np.array(0)} | {name: np.zeros(size, np.float32) for name in self.moments}
        rounds = int(state["rounds"]) + 1
        after = {name: np.empty(size, np.float32) for name in self.moments}
        last = 0
        for block in updates.blocks():
            numbers = average_block(block, readers)
            if _is_optimized(block):
                first, last = last, last + block.size
                own = current_model.read(block)
                moments = {name: state[name][first:last].astype(np.float64) for name in self.moments}
                numbers = own + self.step(numbers - own, moments, rounds)
                for name, moment in moments.items():
                    after[name][first:last] = moment
            model.write(block, numbers)
        return model, {**after, "rounds": np.array(rounds)}


def _is_optimized(block: Block) -> bool:
    return block.kind is TensorKind.PARAMETERS and block.is_float
