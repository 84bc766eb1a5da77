"""Who was selected: in a round, and how often in all rounds of a task."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, Select, bindparam, func, select

from services.domain.rounds import Round
from services.storage.rows import as_dataclass, with_values
from services.storage.tables import clients, rounds, slots, tasks

_NEWEST_ROUND = (
    select(rounds, tasks.c.task_id)
    .join_from(rounds, tasks, tasks.c.serial == rounds.c.task_serial)
    .order_by(rounds.c.serial.desc())
    .limit(1)
)
_TASKS = (
    select(tasks.c.task_id, tasks.c.name)
    .where(tasks.c.rounds > 0)
    .order_by(tasks.c.serial.desc())
    .limit(bindparam("most"))
)
_OF_ROUND = with_values(
    select(clients.c.serial).join_from(slots, clients, clients.c.client_id == slots.c.client_id),
    slots.c.round_serial,
).order_by(slots.c.order)
_times_selected = (
    with_values(
        select(slots.c.client_id, func.count().label("times")).join_from(
            rounds, slots, slots.c.round_serial == rounds.c.serial
        ),
        rounds.c.task_serial,
    )
    .group_by(slots.c.client_id)
    .subquery()
)
_COUNTS = select(clients.c.serial, _times_selected.c.times).join_from(
    _times_selected, clients, clients.c.client_id == _times_selected.c.client_id
)


class Selections:
    """The selections in a database. Clients that have been removed since are left out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest_round(self) -> Round | None:
        """The newest round of all tasks."""
        row = self._connection.execute(_NEWEST_ROUND).one_or_none()
        return as_dataclass(Round, row) if row else None

    def tasks(self, most: int) -> list[tuple[str, str]]:
        """Ids and names of the tasks that have a round, newest first, so many at the most."""
        return [(row.task_id, row.name) for row in self._connection.execute(_TASKS, {"most": most})]

    def of_round(self, round_serial: int) -> npt.NDArray[np.int64]:
        """The serials of those selected in a round, in upload order."""
        return _column(self._all(_OF_ROUND, round_serial=round_serial), 0)

    def counts(self, task_serial: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The serials of all that a task has ever selected, and how often it has."""
        rows = self._all(_COUNTS, task_serial=task_serial)
        return _column(rows, 0), _column(rows, 1)

    def _all(self, query: Select[Any], **values: int) -> "list[Row[Any]]":
        return list(self._connection.execute(query, values))


def _column(rows: "list[Row[Any]]", place: int) -> npt.NDArray[np.int64]:
    return np.array([row[place] for row in rows], dtype=np.int64)
