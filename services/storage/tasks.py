"""Tasks."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Unpack

from sqlalchemy import bindparam, delete, insert, select

from services.domain.rounds import OPEN_STATES
from services.domain.tasks import (
    Task,
    TaskChange,
    TaskState,
    TaskTerms,
)
from services.errors import RoundNotFoundError, TaskNotFoundError
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    as_dataclass,
    change_where,
    count_rows,
    new_id,
    with_values,
)
from services.storage.tables import (
    candidates,
    device_evaluations,
    evaluation_parts,
    evaluations,
    jobs,
    model_versions,
    rounds,
    slots,
    tasks,
    trainings,
    updates,
)

_TASK = with_values(select(tasks), tasks.c.task_id)
# Not FOR UPDATE, which would also block inserts of reports that reference the task.
_LOCKED_TASK = _TASK.with_for_update(key_share=True)
_OF_ROUND = with_values(select(rounds.c.task_serial), rounds.c.round_id).scalar_subquery()
_LOCKED_TASK_OF_ROUND = select(tasks).where(tasks.c.serial == _OF_ROUND).with_for_update(key_share=True)
_ID_OF = with_values(select(tasks.c.task_id), tasks.c.serial)
_SERIALS_OF = select(tasks.c.task_id, tasks.c.serial).where(
    tasks.c.task_id.in_(bindparam("task_ids", expanding=True))
)
_WITH_OPEN_ROUND = select(rounds.c.task_serial).where(rounds.c.state.in_(OPEN_STATES))
_IDLE = (
    select(tasks)
    .where(tasks.c.state == TaskState.RUNNING, tasks.c.serial.not_in(_WITH_OPEN_ROUND))
    .order_by(tasks.c.serial)
)
_UNFINISHED = select(tasks).where(tasks.c.ended_at.is_(None)).order_by(tasks.c.serial)
_CHANGE = change_where(tasks, tasks.c.serial)


class Tasks(Repository):
    """The tasks in a database."""

    def add(self, terms: TaskTerms, now: datetime) -> Task:
        """Create a task."""
        task_id = new_id("task")
        row = {
            "task_id": task_id,
            "state": TaskState.INITIALIZING,
            "created_at": now,
            "rounds": 0,
            "elapsed_s": 0.0,
            "terms": terms,
        }
        self._connection.execute(insert(tasks), row)
        return self.get(task_id)

    def get(self, task_id: str, *, lock: bool = False) -> Task:
        """One task; ``lock`` locks it and everything that belongs to it until the transaction ends."""
        query = _LOCKED_TASK if lock else _TASK
        found = self._find(Task, query, task_id=task_id)
        if found is None:
            raise TaskNotFoundError(task_id)
        return found

    def lock_of_round(self, round_id: str) -> Task:
        """Lock the task of a round until the transaction ends."""
        found = self._find(Task, _LOCKED_TASK_OF_ROUND, round_id=round_id)
        if found is None:
            raise RoundNotFoundError(round_id)
        return found

    def page(self, paging: Paging, state: TaskState | None) -> Page[Task]:
        """The tasks, newest first."""
        query = select(tasks) if state is None else select(tasks).where(tasks.c.state == state)
        rows = self._connection.execute(paging.of(query.order_by(tasks.c.serial.desc())))
        return Page([as_dataclass(Task, row) for row in rows], count_rows(self._connection, query))

    def serials_of(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The serials of these tasks, without those that do not exist."""
        rows = self._connection.execute(_SERIALS_OF, {"task_ids": task_ids})
        return {row.task_id: row.serial for row in rows}

    def id_of(self, serial: int) -> str:
        """The id of a task."""
        return str(self._connection.execute(_ID_OF, {"serial": serial}).scalar_one())

    def unfinished(self) -> list[Task]:
        """Those that are not over."""
        return self._list(Task, _UNFINISHED)

    def idle(self) -> list[Task]:
        """Running tasks without an open round."""
        return self._list(Task, _IDLE)

    def change(self, task: Task, **values: Unpack[TaskChange]) -> Task:
        """Set columns of a task that this transaction has locked."""
        self._connection.execute(_CHANGE, {"of_serial": task.serial, **values})
        return replace(task, **values)

    def remove(self, task: Task) -> None:
        """Delete a task that this transaction has locked, and all that is part of it but its events."""
        of_task = select(rounds.c.serial).where(rounds.c.task_serial == task.serial)
        for table in (updates, trainings, slots, candidates):
            self._connection.execute(delete(table).where(table.c.round_serial.in_(of_task)))
        for table in (jobs, rounds, evaluation_parts, evaluations, device_evaluations, model_versions):
            self._connection.execute(delete(table).where(table.c.task_serial == task.serial))
        self._connection.execute(delete(tasks).where(tasks.c.serial == task.serial))
