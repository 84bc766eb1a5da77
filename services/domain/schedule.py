"""The schedule of a round: upload slots on the grid of LTE resource blocks.

Updates run in parallel and uploads one after another (Section III-C of the paper). An upload starts when its
update is done and the channel is free.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.domain.nanoseconds import Nanoseconds
from services.domain.resources import EstimatedTimes, Positions

TIME_SLOT_NS = 500_000
"""A resource block lasts 0.5 ms."""


@dataclass(frozen=True)
class UploadSlot:
    """The upload slot of one client. Times count from the start of Scheduled Update and Upload."""

    position: int
    update_ns: int
    upload_ns: int
    upload_start_ns: int
    upload_end_ns: int
    time_slot_first: int
    time_slot_count: int


@dataclass(frozen=True)
class Schedule:
    """The selected clients in upload order: one row of each column per slot."""

    positions: Positions
    times: EstimatedTimes
    upload_ends_ns: Nanoseconds
    distribution_ns: int

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def elapsed_ns(self) -> int:
        """Θ at the end of the last upload; 0 for an empty schedule."""
        return int(self.upload_ends_ns[-1]) if len(self) else 0

    def slots(self) -> Iterator[UploadSlot]:
        """Each slot, in upload order."""
        starts_ns = self.upload_ends_ns - self.times.upload_ns
        first = _time_slot(starts_ns)
        count = _time_slot(self.upload_ends_ns) - first
        columns = (
            self.positions,
            self.times.update_ns,
            self.times.upload_ns,
            starts_ns,
            self.upload_ends_ns,
            first,
            count,
        )
        return map(UploadSlot, *(column.tolist() for column in columns))


def build_schedule(order: Positions, times: EstimatedTimes) -> Schedule:
    """Schedule these candidates, given in upload order."""
    selected = times.of(order)
    return Schedule(order, selected, upload_ends_ns(selected), selected.distribution_ns())


def upload_ends_ns(selected: EstimatedTimes) -> Nanoseconds:
    """Θ after each upload: ``Θ_i = max(Θ_{i-1}, update) + upload``, for all of them at once."""
    uploaded_ns = np.cumsum(selected.upload_ns)
    waits_ns = selected.update_ns - (uploaded_ns - selected.upload_ns)
    return uploaded_ns + np.maximum.accumulate(waits_ns)


def _time_slot(moments_ns: Nanoseconds) -> Nanoseconds:
    """The boundary of the grid nearest to each moment: equal moments stay equal, order is kept."""
    return (moments_ns + TIME_SLOT_NS // 2) // TIME_SLOT_NS
