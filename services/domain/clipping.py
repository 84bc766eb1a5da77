"""Limits on the influence of one update: its weight and its norm.

A step is the difference between an update and the round's model. The norms of its parameters and of its
running statistics of batch normalisation are limited separately (docs/adr/0030).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from services.domain.noise_scale import StepMoments

PAST_ROUNDS = 10
"""Number of past rounds that the limits use."""
_MAX_GROWTH = 1.5
"""A round's median is limited to this multiple of the median of the past rounds."""
_PARAMETERS_TIMES_MEDIAN = 20
_STATISTICS_TIMES_MEDIAN = 2000


@dataclass(frozen=True)
class StepNorms:
    """Euclidean norms of a step, or of a model."""

    parameters: float
    statistics: float


@dataclass(frozen=True)
class StepScales:
    """Factors applied to a step; 1 if it is within the limits."""

    parameters: float = 1.0
    statistics: float = 1.0

    @property
    def clips(self) -> bool:
        """Whether the step is clipped."""
        return self.parameters < 1 or self.statistics < 1


@dataclass(frozen=True)
class UpdateInfluence:
    """The influence of an update on the model: norms of its step, weight and scales."""

    norms: StepNorms
    weight: int
    scales: StepScales


@dataclass(frozen=True)
class AggregationRecord:
    """The record of an aggregation."""

    medians: StepNorms = StepNorms(0.0, 0.0)
    """Median norms of the aggregated steps."""
    influences: Mapping[str, UpdateInfluence] = field(default_factory=dict)
    """Influences of the aggregated updates, by client."""
    outliers: Mapping[str, str] = field(default_factory=dict)
    """Clients whose updates were rejected as outliers, with the reason."""
    moments: StepMoments | None = None
    """By which the noise of the updates is estimated."""


@dataclass(frozen=True)
class ClipTerms:
    """The clipping limits of a task, and the medians of its past rounds."""

    factor: float | None = None
    """Steps with a norm above this multiple of the median are clipped; none: no clipping."""
    max_norm: float | None = None
    """Steps with a larger parameter norm are clipped to this norm."""
    past: Sequence[StepNorms] = ()
    """The medians of the past rounds."""


def cap_samples(data_samples: Sequence[int], factor: float | None) -> list[int]:
    """Numbers of samples as weights, each at most ``factor`` times the median."""
    if factor is None:
        return list(data_samples)
    limit = max(int(factor * median_low(data_samples)), 1)
    return [min(count, limit) for count in data_samples]


def limit_weights(
    weights: Mapping[str, int],
    steps: Mapping[str, StepNorms],
    scales: Mapping[str, StepScales],
    terms: ClipTerms,
) -> dict[str, int]:
    """The weights of the updates; those above the median weight are limited by their contribution.

    The contribution of an update is its weight times the norm of its clipped step. The limit is the median
    weight times the largest norm that the factor allows, so no weight is reduced below the median.
    """
    if terms.factor is None:
        return dict(weights)
    limits = _limits(steps, terms)
    median = median_low(weights.values())
    limited = {}
    for client_id, weight in weights.items():
        step, scale = steps[client_id], scales[client_id]
        factor = min(
            _factor_within(step.parameters * scale.parameters, limits.parameters),
            _factor_within(step.statistics * scale.statistics, limits.statistics),
        )
        limited[client_id] = min(weight, int(median * min(factor, weight)))
    return limited


def find_outliers(steps: Mapping[str, StepNorms], model: StepNorms) -> dict[str, str]:
    """The clients whose steps are outliers, with the reason.

    The norm of the model is included in the median, so that a single step can be judged too.
    """
    compared = [*steps.values(), model]
    max_parameters = _PARAMETERS_TIMES_MEDIAN * _median(norms.parameters for norms in compared)
    max_statistics = _STATISTICS_TIMES_MEDIAN * _median(norms.statistics for norms in compared)
    outliers = {}
    for client_id, step in steps.items():
        if not step.parameters <= max_parameters:
            outliers[client_id] = _reason("parameters", step.parameters, max_parameters)
        elif not step.statistics <= max_statistics:
            outliers[client_id] = _reason("running statistics", step.statistics, max_statistics)
    return outliers


def median_norms(steps: Iterable[StepNorms]) -> StepNorms:
    """The medians of a round.

    Running statistics that did not move count: otherwise a single update that moves them would set the limit.
    """
    measured = list(steps)
    statistics = [norms.statistics for norms in measured]
    return StepNorms(
        _median(norms.parameters for norms in measured), median_low(statistics) if statistics else 0.0
    )


def clip_steps(steps: Mapping[str, StepNorms], terms: ClipTerms) -> dict[str, StepScales]:
    """The scales of each step."""
    limits = _limits(steps, terms)
    scales = {}
    for client_id, step in steps.items():
        whole = _scale(step.parameters, terms.max_norm or math.inf)
        scales[client_id] = StepScales(
            min(whole, _scale(step.parameters, limits.parameters)),
            min(whole, _scale(step.statistics, limits.statistics)),
        )
    return scales


def _limits(steps: Mapping[str, StepNorms], terms: ClipTerms) -> StepNorms:
    """The largest norms that the factor allows."""
    if terms.factor is None:
        return StepNorms(math.inf, math.inf)
    own = median_norms(steps.values())
    past = median_norms(terms.past)
    return StepNorms(
        terms.factor * _reference(own.parameters, past.parameters),
        terms.factor * _reference(own.statistics, past.statistics),
    )


def _factor_within(norm: float, limit: float) -> float:
    """By what factor a step may weigh more than the median weight."""
    return max(1.0, limit / norm) if norm else math.inf


def _reference(own_median: float, past_median: float) -> float:
    """The reference norm: the round's median, limited by the median of the past rounds."""
    return min(own_median, _MAX_GROWTH * past_median) if past_median else own_median


def _scale(norm: float, limit: float) -> float:
    return min(1.0, limit / norm) if norm else 1.0


def _median(norms: Iterable[float]) -> float:
    """The median of the positive finite norms; 0 if there are none."""
    usable = [norm for norm in norms if 0 < norm < math.inf]
    return median_low(usable) if usable else 0.0


def _reason(what: str, norm: float, limit: float) -> str:
    return f"outlier: the update changes the {what} by {norm:.3g} (Euclidean norm); the limit is {limit:.3g}"
