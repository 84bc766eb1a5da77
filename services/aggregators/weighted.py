"""FedAvg: the average weighted by each client's number of samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.aggregators.aggregation import State
from services.aggregators.updates import ModelReader, RoundUpdates, UpdateReader
from services.domain.clipping import cap_samples
from services.domain.parameters import parameter
from services.tensors.blocks import Block, FloatArray, ModelBuffer


@dataclass(frozen=True)
class WeightedAverage:
    """Adds up the clients' numbers, each times the client's weight, and divides by all weights.

    In this order sums are as good as exact, so that the order of the updates does not matter.
    """

    summary: ClassVar[str] = "The average of the updates, weighted by samples (FedAvg)."
    takes_sparse: ClassVar[bool] = True
    averages_steps: ClassVar[bool] = True
    min_updates: ClassVar[int] = 1

    weight_cap_factor: float | None = parameter(
        3.0, ge=1, description="No client counts more than so many times the median client; null: no cap."
    )

    def weights(self, data_samples: Sequence[int]) -> list[int]:
        """The samples of each client, up to the cap."""
        return cap_samples(data_samples, self.weight_cap_factor)

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The average."""
        return average(current_model, updates.blocks(), list(updates)), state


def average(
    current_model: ModelReader, blocks: Iterable[Block], updates: Sequence[UpdateReader]
) -> ModelBuffer:
    """The average by the updates' weights."""
    model = ModelBuffer(current_model.layout)
    for block in blocks:
        model.write(block, average_block(block, updates))
    return model


def average_block(block: Block, updates: Sequence[UpdateReader]) -> FloatArray:
    """The average of one block, in double precision."""
    total, product = np.empty(block.size), np.empty(block.size)
    target = total
    for update in updates:
        np.copyto(target, update.read(block))  # in two steps: numpy would convert piece by piece
        np.multiply(target, float(update.weight), out=target)
        if target is product:
            np.add(total, product, out=total)
        target = product
    total /= sum(float(update.weight) for update in updates)
    return total
