"""What past slots say about clients: how to correct their reports, and which clients a round passes over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from services.domain.radio import PerClient
from services.domain.resources import Positions, ResourceReports
from services.domain.rounds import DECLINES_PER_MISS

PAST_SLOTS = 10
"""How many of a client's newest slots count."""
_RECENCY = 0.7
"""The weight of a slot, as a share of that of the next newer one."""
_FIRST_SPREAD = 0.2
"""Of the logarithm of one ratio, before anything is known of the client; it counts as one slot."""
_DOUBT = 3.0
"""A mean that is so many standard errors away from the report corrects by half of that."""
_MOST_CORRECTION = 1000.0


@dataclass(frozen=True)
class PastSlots:
    """Past slots of the candidates: one row per slot. The ratios are of actual to reported times."""

    candidates: Positions
    """Whose slot it was."""
    ages: Positions
    """0: the newest of its client."""
    update_ratios: PerClient
    """Not a positive number: unknown."""
    upload_ratios: PerClient

    @classmethod
    def measured(
        cls,
        candidates: Sequence[int],
        ages: Sequence[int],
        updates: Sequence[tuple[float | None, int, float | None, float | None]],
        uploads: Sequence[tuple[float | None, int, float | None, float | None]],
    ) -> "PastSlots":
        """From the actual seconds, planned nanoseconds, reported and expected figure of each slot."""
        return cls(
            np.array(candidates, dtype=np.intp),
            np.array(ages, dtype=np.intp),
            _ratios(updates),
            _ratios(uploads),
        )


def _ratios(rows: Sequence[tuple[float | None, int, float | None, float | None]]) -> PerClient:
    """Actual time by reported time; the planned time is that of the expected figure."""
    actual_s, planned_ns, reported, expected = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    by_report = np.where(np.isnan(expected), 1.0, expected / reported)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: PerClient = actual_s * 1e9 / (planned_ns * by_report)
    return ratios


@dataclass(frozen=True)
class LearnedRatio:
    """By what the times of each client are multiplied: one row per candidate."""

    factor: PerClient
    """1: as reported."""
    spread: PerClient
    """The standard deviation of the logarithm of its past ratios."""


def learn_ratio(candidates: Positions, ages: Positions, ratios: PerClient, count: int) -> LearnedRatio:
    """The recency-weighted geometric mean of each candidate's ratios, as far as they agree.

    A mean that the spread of the ratios may explain is drawn towards 1. A ratio of 100 is believed at once.
    """
    known = np.isfinite(ratios) & (ratios > 0)
    owner, logs = candidates[known], np.log(ratios[known])
    weights: PerClient = np.power(_RECENCY, ages[known], dtype=np.float64)

    def total(values: PerClient) -> PerClient:
        return np.bincount(owner, values, count).astype(np.float64)

    weight = np.maximum(total(weights), np.finfo(float).tiny)
    mean = total(weights * logs) / weight
    variance = total(weights * (logs - mean[owner]) ** 2) / weight
    slots = weight**2 / np.maximum(total(weights**2), np.finfo(float).tiny)
    slots = np.maximum(slots, 1.0)
    doubt = _DOUBT**2 * (variance + _FIRST_SPREAD**2 / slots) / slots
    factor = np.exp(mean * mean**2 / (mean**2 + doubt))
    return LearnedRatio(np.clip(factor, 1 / _MOST_CORRECTION, _MOST_CORRECTION), np.sqrt(variance))


def correct_reports(reports: ResourceReports, past: PastSlots) -> ResourceReports:
    """What to expect of the candidates after their past slots."""
    update = learn_ratio(past.candidates, past.ages, past.update_ratios, len(reports))
    upload = learn_ratio(past.candidates, past.ages, past.upload_ratios, len(reports))
    return replace(
        reports,
        throughput_bps=reports.throughput_bps / upload.factor,
        compute_samples_per_s=reports.compute_samples_per_s / update.factor,
    )


MISSES_BEFORE_COOLDOWN = 2
"""In a row."""
MAX_COOLDOWN_DRAWS = 64

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Undelivered:
    """Slots since the last delivered update of their client: one row per slot.

    The slots of a client follow one another, the oldest first.
    """

    client: _Numbers
    """Serial."""
    round_number: _Numbers
    declined: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cooldowns:
    """Clients that have missed several rounds in a row: one row per client."""

    client: _Numbers
    misses: _Numbers
    """In a row."""
    last_missed: _Numbers
    """The number of the round."""
    until: _Numbers
    """The last round for which the client is not drawn."""


def find_cooldowns(slots: Undelivered, request_fraction: float) -> Cooldowns:
    """The clients that missed at least two rounds in a row, and how long each is not drawn.

    The pause is as long as two draws of the client take on average, 2/C rounds, and doubles with each further
    miss, up to ``MAX_COOLDOWN_DRAWS``. Three declined slots in a row count as one miss.
    """
    changes = np.ones(len(slots.client), dtype=np.bool_)
    changes[1:] = (slots.client[1:] != slots.client[:-1]) | (slots.declined[1:] != slots.declined[:-1])
    begins = np.flatnonzero(changes)
    place = np.arange(len(changes)) - np.repeat(begins, np.diff(begins, append=len(changes)))
    missed = ~slots.declined | ((place + 1) % DECLINES_PER_MISS == 0)
    clients, first, misses = np.unique(slots.client[missed], return_index=True, return_counts=True)
    last = slots.round_number[missed][first + misses - 1]
    enough = misses >= MISSES_BEFORE_COOLDOWN
    draws = np.minimum(2.0 ** (misses[enough] - 1), MAX_COOLDOWN_DRAWS)
    pauses = np.ceil(draws / request_fraction).astype(np.int64)
    return Cooldowns(clients[enough], misses[enough], last[enough], last[enough] + pauses)


def most_rounds(max_share: float, round_number: int) -> int:
    """In how many of so many rounds a client may be selected: the share as it is written, rounded up."""
    return math.ceil(round_number * Fraction(str(max_share)))
