"""Which updates are out of all proportion: poisoned, or diverged. They must not become part of a model.

An update is judged by how far it moves the model, beside the others of its round. The model's own length is
one more to compare with, so that a client that is alone can be judged too. The running statistics of batch
normalisation are judged apart and more leniently: those of honest clients differ much more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

_PARAMETERS_TIMES_MEDIAN = 20
_STATISTICS_TIMES_MEDIAN = 2000


class TensorKind(StrEnum):
    """What a tensor is for."""

    PARAMETERS = "parameters"
    MEANS = "running means"
    VARIANCES = "running variances"
    COUNTERS = "counters"


_ENDINGS = {
    "running_mean": TensorKind.MEANS,
    "running_var": TensorKind.VARIANCES,
    "num_batches_tracked": TensorKind.COUNTERS,
}


@dataclass(frozen=True)
class Norms:
    """Euclidean norms of a step, or of a model; counters have none."""

    parameters: float
    statistics: float


def kind_of(tensor_name: str) -> TensorKind:
    """What a tensor is for, by the name that torch's modules give it."""
    for ending, kind in _ENDINGS.items():
        if tensor_name.endswith(ending):
            return kind
    return TensorKind.PARAMETERS


def find_outliers(steps: Mapping[str, Norms], model: Norms) -> dict[str, str]:
    """Whose steps are too long to be used, and why."""
    compared = [*steps.values(), model]
    most_parameters = _PARAMETERS_TIMES_MEDIAN * _median([norms.parameters for norms in compared])
    most_statistics = _STATISTICS_TIMES_MEDIAN * _median([norms.statistics for norms in compared])
    outliers = {}
    for client_id, step in steps.items():
        if not step.parameters <= most_parameters:
            outliers[client_id] = _reason("parameters", step.parameters, most_parameters)
        elif not step.statistics <= most_statistics:
            outliers[client_id] = _reason("running statistics", step.statistics, most_statistics)
    return outliers


def _median(norms: Sequence[float]) -> float:
    """Of those that say something: not of steps that go nowhere, nor of those without end."""
    usable = [norm for norm in norms if 0 < norm < math.inf]
    return median_low(usable) if usable else 0.0


def _reason(what: str, norm: float, most: float) -> str:
    return f"its update moves the {what} by {norm:.3g} (Euclidean norm); {most:.3g} is the most here"
