"""Aggregation: a round's updates become the next global model (section IV-A of the paper).

The norms of the updates are measured while the aggregator reads them. If an update is an outlier or exceeds
a limit, the aggregator runs a second time, without the outliers, with long updates clipped and with limited
weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from services.aggregators.updates import Contribution, LastStep, ModelReader, ReceivedModel, RoundUpdates
from services.domain.clipping import (
    AggregationRecord,
    ClipTerms,
    StepScales,
    UpdateInfluence,
    clip_steps,
    find_outliers,
    limit_weights,
    median_norms,
)
from services.domain.noise_scale import StepMoments
from services.tensors.blocks import ModelBuffer
from services.tensors.encodings.encoding import Encoding
from services.tensors.encodings.float32 import Float32

State: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""State of an aggregator between two model versions: arrays by name."""


class Aggregator(Protocol):
    """Turns a round's updates into the next model. Its parameters are the fields of its dataclass.

    ``aggregate`` may run twice for a round, the second time with clipped updates: it must depend on nothing
    but what it is given.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    summary: ClassVar[str]
    """One sentence for people."""
    takes_sparse: ClassVar[bool]
    """Whether updates may lack numbers; an aggregator that compares clients number by number needs all."""
    averages_steps: ClassVar[bool]
    """Whether the model moves by the mean of the clients' steps. Only then is its last step compared with
    the clients' steps to measure their noise."""

    @property
    def min_updates(self) -> int:
        """The smallest number of updates of a round with which its guarantee holds."""
        ...

    def weights(self, data_samples: Sequence[int]) -> Sequence[int]:
        """The weight of each client, from its number of samples, in slot order."""
        ...

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        """The next model and its state; ``state`` is that of the current model, none at first."""
        ...


@dataclass(frozen=True)
class ReceivedUpdate:
    """An accepted update: its client, its file and the reported number of samples."""

    client_id: str
    path: Path
    data_samples: int


@dataclass(frozen=True)
class Aggregated:
    """The next global model with the aggregator's state; none if all updates are outliers."""

    model: ModelBuffer | None
    state: State | None
    record: AggregationRecord


def aggregate_updates(
    model: Path,
    updates: Sequence[ReceivedUpdate],
    aggregator: Aggregator,
    *,
    state: State | None = None,
    clipping: ClipTerms = ClipTerms(),  # noqa: B008 - frozen
    received: ReceivedModel | None = None,
    previous: Path | None = None,
    encoding: Encoding | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Aggregated:
    """Make the next model of a round's updates, which are given in slot order.

    ``received`` is the model as the clients received it, if it was encoded; ``encoding`` is the updates'.
    ``previous`` is the version before the model, by which the noise of the updates is measured.
    """
    current = ModelReader(model, received)
    bounded = clipping.factor is not None
    last_model = previous if aggregator.averages_steps else None

    def run(
        used: Sequence[ReceivedUpdate], weights: Mapping[str, int], scales: Mapping[str, StepScales]
    ) -> tuple[ModelBuffer, State | None, dict[str, UpdateInfluence], StepMoments]:
        contributions = [
            Contribution(update.client_id, update.path, weights[update.client_id], scales[update.client_id])
            for update in used
        ]
        with (
            RoundUpdates(
                current,
                contributions,
                encoding=encoding or Float32(),
                last_step=None if last_model is None else LastStep(current.blocks, model, last_model),
                bounded=bounded,
                progress=progress,
            ) as readers,
            np.errstate(all="ignore"),  # an update that overflows is an outlier
        ):
            next_model, next_state = aggregator.aggregate(current, readers, state)
            influences = {
                given.client_id: UpdateInfluence(reader.norms(), given.weight, given.scales)
                for given, reader in zip(contributions, readers, strict=True)
            }
            norms = [influence.norms.parameters for influence in influences.values()]
            moments = readers.total.moments(norms)
        return next_model, next_state, influences, moments

    unscaled = {update.client_id: StepScales() for update in updates}
    weights = _weights(aggregator, updates)
    next_model, next_state, influences, moments = run(updates, weights, unscaled)
    steps = {client_id: influence.norms for client_id, influence in influences.items()}
    outliers = find_outliers(steps, current.norms())
    used = [update for update in updates if update.client_id not in outliers]
    steps = {update.client_id: steps[update.client_id] for update in used}
    medians = median_norms(steps.values())
    if not used:
        return Aggregated(None, None, AggregationRecord(medians, {}, outliers))
    scales = clip_steps(steps, clipping)
    limited = limit_weights(_weights(aggregator, used), steps, scales, clipping)
    if (limited, scales) != (weights, unscaled):
        next_model, next_state, influences, moments = run(used, limited, scales)
    record = AggregationRecord(medians, influences, outliers, moments)
    return Aggregated(next_model, next_state, record)


def _weights(aggregator: Aggregator, updates: Sequence[ReceivedUpdate]) -> dict[str, int]:
    """The weight of each client."""
    weights = aggregator.weights([update.data_samples for update in updates])
    return {update.client_id: weight for update, weight in zip(updates, weights, strict=True)}
