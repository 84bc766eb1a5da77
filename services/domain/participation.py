"""Which clients a round passes over: those that did not deliver, and those that had their share of rounds."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from services.domain.rounds import DECLINES_PER_MISS

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
