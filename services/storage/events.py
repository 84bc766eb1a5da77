"""The events of every state change, numbered without gaps in the order in which they became visible.

The number comes from one row, locked until the transaction commits. A sequence would not do: PostgreSQL's
commit out of order, and a stream that was resumed after a number would miss those below it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from services.storage.rows import as_dataclass
from services.storage.tables import event_counter, events

_TAKE_NUMBERS = (
    update(event_counter)
    .values(last_number=event_counter.c.last_number + bindparam("how_many"))
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
    """Something that is about to be true."""

    kind: str
    at: datetime
    task_id: str | None = None
    round_id: str | None = None
    client_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Event(NewEvent):
    """Something that happened."""

    number: int = 0


class Events:
    """The events in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
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
        """Note what this transaction changes."""
        self._recorded.append(NewEvent(kind, now, task_id, round_id, client_id, data))

    def write(self) -> set[str]:
        """Number and keep what was recorded; of which kinds it is.

        Comes last in a transaction: others wait for the numbers.
        """
        if not self._recorded:
            return set()
        last: int = self._connection.execute(_TAKE_NUMBERS, {"how_many": len(self._recorded)}).scalar_one()
        first = last - len(self._recorded) + 1
        rows = [{"number": number, **vars(event)} for number, event in enumerate(self._recorded, first)]
        self._connection.execute(_ADD, rows)
        self._recorded = []
        return {row["kind"] for row in rows}

    def last_number(self) -> int:
        """The number of the newest event; 0 if there is none."""
        last: int = self._connection.execute(_LAST_NUMBER).scalar_one()
        return last

    def after(self, number: int, most: int) -> Sequence[Event]:
        """The events that follow a number, so many at the most."""
        rows = self._connection.execute(_AFTER, {"position": number, "most": most})
        return [as_dataclass(Event, row) for row in rows]

    def forget_before(self, moment: datetime, most: int) -> int:
        """Remove the oldest events, so many at the most; how many they were."""
        oldest = select(events.c.number).order_by(events.c.number).limit(most)
        old = events.c.number.in_(oldest.scalar_subquery()) & (events.c.at < moment)
        return self._connection.execute(delete(events).where(old)).rowcount
