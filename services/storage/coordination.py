"""Coordination between processes: the shared clock, leases and idempotency keys.

One process sets a lease or a deadline and another one checks it. If each used the clock of its own host, a
host whose clock is ahead would hold a lease long after its death, and a host whose clock is behind would
accept late updates. The shared clock is therefore the database's clock: each process reads it from time to
time and adds the seconds since.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from services.storage.sql import Repository
from services.storage.tables import idempotency_keys, leases


class Leases(Repository):
    """The leases in a database."""

    def acquire(self, name: str, holder: str, now: datetime, term: timedelta) -> bool:
        """Acquire or renew a lease; false while another process holds it."""
        ours = or_(leases.c.holder == holder, leases.c.expires_at <= now)
        values = {"holder": holder, "expires_at": now + term}
        if self._connection.execute(
            update(leases).where(leases.c.name == name, ours).values(**values)
        ).rowcount:
            return True
        if self._connection.execute(select(leases).where(leases.c.name == name)).one_or_none():
            return False
        try:
            with self._connection.begin_nested():
                self._connection.execute(insert(leases), {"name": name, **values})
        except IntegrityError:  # another process inserted it first
            return False
        return True

    def release(self, name: str, holder: str) -> None:
        """Release the lease, so that another process can acquire it at once."""
        self._connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == holder))


@dataclass(frozen=True)
class SavedAnswer:
    """The response to a request. It is encrypted: see ``operator_api.dependencies``."""

    fingerprint: bytes
    status: int
    answer: bytes


class IdempotencyKeys(Repository):
    """The idempotency keys in a database; each API key has its own."""

    def find(self, key_id: str, idempotency_key: str) -> SavedAnswer | None:
        """The response to an earlier request with this key."""
        query = select(idempotency_keys).where(
            idempotency_keys.c.key_id == key_id, idempotency_keys.c.idempotency_key == idempotency_key
        )
        return self._find(SavedAnswer, query)

    def add(self, key_id: str, idempotency_key: str, saved: SavedAnswer, now: datetime) -> None:
        """Store a response in the transaction of its request."""
        row = {
            "key_id": key_id,
            "idempotency_key": idempotency_key,
            "fingerprint": saved.fingerprint,
            "status": saved.status,
            "answer": saved.answer,
            "created_at": now,
        }
        self._connection.execute(insert(idempotency_keys), row)

    def delete_before(self, moment: datetime) -> int:
        """Delete old responses; returns their number."""
        old = idempotency_keys.c.created_at < moment
        return self._connection.execute(delete(idempotency_keys).where(old)).rowcount


_SYNC_INTERVAL_S = 10.0
_MAX_QUERY_S = 0.5
"""The result of a slower query is too inaccurate to use."""

_NOW = select(func.clock_timestamp())


class SharedClock:
    """The database's time; the host's time until the first synchronization."""

    def __init__(self) -> None:
        self._known: tuple[datetime, float] | None = None
        """A time of the database, and the monotonic clock at that moment."""
        self._synced_s = float("-inf")

    def now(self) -> datetime:
        """The current time, computed without a query."""
        if self._known is None:
            return datetime.now(UTC)
        moment, then_s = self._known
        return moment + timedelta(seconds=time.monotonic() - then_s)

    @property
    def is_due(self) -> bool:
        """Whether the last synchronization is so old that the clocks may have drifted apart."""
        return time.monotonic() - self._synced_s > _SYNC_INTERVAL_S

    def synchronize(self, connection: Connection) -> None:
        """Read the clock of a PostgreSQL database."""
        began_s = time.monotonic()
        moment: datetime = connection.execute(_NOW).scalar_one()
        ended_s = time.monotonic()
        if self._known is None or ended_s - began_s <= _MAX_QUERY_S:
            self._known = (moment.astimezone(UTC), (began_s + ended_s) / 2)
            self._synced_s = ended_s
