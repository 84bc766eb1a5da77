"""Time as whole nanoseconds: rounded once when it is estimated, exact from then on.

Sums and comparisons of floats depend on the order of the additions, so two correct schedulers can
disagree about a tie; whole numbers never do.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Nanoseconds: TypeAlias = npt.NDArray[np.int64]
"""One duration or moment per candidate."""

NEVER_NS = 2**60
"""About 36 years. Durations are cut off here, so that any three of them add up within 64 bits."""

_PER_SECOND = 1_000_000_000


def round_to_ns(durations_s: npt.NDArray[np.float64]) -> Nanoseconds:
    """Each duration in whole nanoseconds; ``NEVER_NS`` for longer ones."""
    with np.errstate(over="ignore"):
        durations_ns = durations_s * _PER_SECOND
    return np.rint(np.minimum(durations_ns, NEVER_NS)).astype(np.int64)


def cumulative_sums_ns(durations_ns: Nanoseconds, enough_ns: int) -> Nanoseconds:
    """Cumulative sums of durations, truncated after they exceed ``enough_ns``, before they overflow."""
    in_floats = np.cumsum(durations_ns, dtype=np.float64)
    worth_adding = int(np.searchsorted(in_floats, 2.0 * enough_ns)) + 1
    return np.cumsum(durations_ns[:worth_adding])


def to_ns(duration_s: float) -> int:
    """One duration in whole nanoseconds; ``NEVER_NS`` for a longer one."""
    return round(min(duration_s * _PER_SECOND, NEVER_NS))


def to_seconds(duration_ns: int) -> float:
    """One duration in seconds."""
    return duration_ns / _PER_SECOND
