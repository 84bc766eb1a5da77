"""Roles that one process at a time may have."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from services.storage.tables import leases


class Leases:
    """The leases in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def hold(self, name: str, holder: str, now: datetime, term: timedelta) -> bool:
        """Take or renew a role; false while another holds it."""
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
        except IntegrityError:  # another was first
            return False
        return True

    def give_up(self, name: str, holder: str) -> None:
        """Let another take over at once."""
        self._connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == holder))
