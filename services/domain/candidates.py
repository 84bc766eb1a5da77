"""The Resource Request: which clients are asked for their resources in a round."""

import math
from fractions import Fraction

import numpy as np

from services.domain.resources import Positions


def count_candidates(clients: int, request_fraction: float) -> int:
    """Calculate ⌈K·C⌉ with the fraction as it is written: 7 % of 100 clients are 7, not 8."""
    return math.ceil(clients * Fraction(str(request_fraction)))


def draw_candidates(clients: int, request_fraction: float, rng: np.random.Generator) -> Positions:
    """Draw ⌈K·C⌉ of the clients, each set of them as likely as any other, in random order."""
    return rng.choice(clients, size=count_candidates(clients, request_fraction), replace=False)
