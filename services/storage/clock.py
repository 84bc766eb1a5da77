"""The clock that all processes share: the database's.

A lease or a deadline is set by one process and judged by another. If each went by the clock of its host, a
host whose clock is ahead would hold a lease long after its death, and one whose clock is behind would call
late updates early. So the database is asked for the time now and then, and the seconds since are counted.
"""

import time
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select

_ASK_AFTER_S = 10.0
_SLOWEST_S = 0.5
"""An answer that took longer is older than it says."""

_NOW = select(func.clock_timestamp())


class SharedClock:
    """The database's time; until it was asked for, that of this host."""

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None
        """A moment, and what the stopwatch of this process showed then."""
        self._asked_s = float("-inf")

    def now(self) -> datetime:
        """What time it is; asks nobody."""
        if self._known is None:
            return datetime.now(UTC)
        moment, then_s = self._known
        return moment + timedelta(seconds=time.monotonic() - then_s)

    @property
    def is_due(self) -> bool:
        """Whether the database was last asked so long ago that the clocks may have drifted apart."""
        return time.monotonic() - self._asked_s > _ASK_AFTER_S

    def ask(self, connection: Connection) -> None:
        """Ask a PostgreSQL database what time it is."""
        began_s = time.monotonic()
        moment: datetime = connection.execute(_NOW).scalar_one()
        ended_s = time.monotonic()
        if self._known is None or ended_s - began_s <= _SLOWEST_S:
            self._known = (moment.astimezone(UTC), (began_s + ended_s) / 2)
            self._asked_s = ended_s
