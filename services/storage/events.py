"""Events of state changes, numbered without gaps in commit order.

The number comes from a row that is locked until the transaction commits. A PostgreSQL sequence is not enough:
transactions commit out of order, so a stream that resumes after a number would miss lower numbers.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from services.storage.sql import Repository
from services.storage.tables import event_counter, events

_TAKE_NUMBERS = (
    update(event_counter)
    .values(last_number=event_counter.c.last_number + bindparam("count"))
    .returning(event_counter.c.last_number)
)
_LAST_NUMBER = select(event_counter.c.last_number)
_ADD = insert(events)
_AFTER = (
    select(events)
    .where(events.c.number > bindparam("position"))
    .order_by(events.c.number)
    .limit(bindparam("most"))
)


@dataclass(frozen=True)
class NewEvent:
    """An event that is not committed yet."""

    kind: str
    at: datetime
    task_id: str | None = None
    round_id: str | None = None
    client_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event(NewEvent):
    """A committed event."""

    number: int = 0


class Events(Repository):
    """The events in a database."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._recorded: list[NewEvent] = []

    def record(
        self,
        kind: str,
        now: datetime,
        *,
        task_id: str | None = None,
        round_id: str | None = None,
        client_id: str | None = None,
        **data: Any,
    ) -> None:
        """Record an event of this transaction."""
        self._recorded.append(NewEvent(kind, now, task_id, round_id, client_id, data))

    def write(self) -> Counter[str]:
        """Number and insert the recorded events; returns how many there are of each kind.

        This is the last step of a transaction, because other transactions wait for the counter.
        """
        if not self._recorded:
            return Counter()
        last: int = self._connection.execute(_TAKE_NUMBERS, {"count": len(self._recorded)}).scalar_one()
        first = last - len(self._recorded) + 1
        rows = [{"number": number, **vars(event)} for number, event in enumerate(self._recorded, first)]
        self._connection.execute(_ADD, rows)
        self._recorded = []
        return Counter(row["kind"] for row in rows)

    def last_number(self) -> int:
        """The number of the newest event; 0 if there is none."""
        return int(self._connection.execute(_LAST_NUMBER).scalar_one())

    def after(self, number: int, most: int) -> Sequence[Event]:
        """The events after a number, at most ``most``."""
        return self._list(Event, _AFTER, position=number, most=most)

    def delete_before(self, moment: datetime, most: int) -> int:
        """Delete the oldest events before a time, at most ``most``; returns their number."""
        oldest = select(events.c.number).order_by(events.c.number).limit(most)
        old = events.c.number.in_(oldest.scalar_subquery()) & (events.c.at < moment)
        return self._connection.execute(delete(events).where(old)).rowcount
