"""Tasks, the versions of their models, and how good those are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from services.domain.evaluation import Evaluation, Score
from services.domain.rounds import OPEN_STATES
from services.domain.tasks import Task, TaskState, TaskTerms
from services.errors import ModelNotFoundError, RoundNotFoundError, TaskNotFoundError
from services.storage.ids import new_id
from services.storage.model_store import Blob
from services.storage.rows import Page, Paging, as_dataclass, change_where, count, with_values
from services.storage.tables import (
    evaluation_parts,
    evaluations,
    model_versions,
    rounds,
    tasks,
    trainings,
    updates,
)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a task's model; the bytes are in the model store."""

    version: int
    digest: str
    size_bytes: int
    created_at: datetime


_TASK = with_values(select(tasks), tasks.c.task_id)
# Not FOR UPDATE: that would also hold up the reports that refer to the task.
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
_CHANGE = change_where(tasks, tasks.c.serial)
_MODEL = with_values(select(model_versions), model_versions.c.task_serial, model_versions.c.version)


class Tasks:
    """The tasks in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, terms: TaskTerms, now: datetime) -> Task:
        """Begin a task."""
        task_id = new_id("task")
        row = {
            "task_id": task_id,
            "state": TaskState.INITIALIZING,
            "created_at": now,
            "rounds": 0,
            "elapsed_s": 0.0,
            **vars(terms),
        }
        self._connection.execute(insert(tasks), row)
        return self.get(task_id)

    def get(self, task_id: str, *, lock: bool = False) -> Task:
        """One task; with ``lock`` nobody else changes it, or anything that is part of it, meanwhile."""
        query = _LOCKED_TASK if lock else _TASK
        row = self._connection.execute(query, {"task_id": task_id}).one_or_none()
        if row is None:
            raise TaskNotFoundError(task_id)
        return _task(row)

    def lock_of_round(self, round_id: str) -> Task:
        """The task of a round; nobody else changes it, or anything that is part of it, meanwhile."""
        row = self._connection.execute(_LOCKED_TASK_OF_ROUND, {"round_id": round_id}).one_or_none()
        if row is None:
            raise RoundNotFoundError(round_id)
        return _task(row)

    def page(self, paging: Paging, state: TaskState | None) -> Page[Task]:
        """The tasks, newest first."""
        query = select(tasks) if state is None else select(tasks).where(tasks.c.state == state)
        rows = self._connection.execute(paging.of(query.order_by(tasks.c.serial.desc())))
        return Page([_task(row) for row in rows], count(self._connection, query))

    def serials_of(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The serials of those that exist."""
        rows = self._connection.execute(_SERIALS_OF, {"task_ids": task_ids})
        return {row.task_id: row.serial for row in rows}

    def id_of(self, serial: int) -> str:
        """The id of a task."""
        task_id: str = self._connection.execute(_ID_OF, {"serial": serial}).scalar_one()
        return task_id

    def idle(self) -> list[Task]:
        """Those that are running and have no round under way."""
        return [_task(row) for row in self._connection.execute(_IDLE)]

    def change(self, task: Task, **values: object) -> Task:
        """Set columns of a task that this transaction has locked."""
        self._connection.execute(_CHANGE, {"of_serial": task.serial, **values})
        return replace(task, **values)  # type: ignore[arg-type]


class Models:
    """The model versions in a database, and their evaluations."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, task: Task, version: int, blob: Blob, now: datetime) -> ModelVersion:
        """Keep a version, in place of what was there."""
        values = {"digest": blob.digest, "size_bytes": blob.size_bytes, "created_at": now}
        of_version = (model_versions.c.task_serial == task.serial) & (model_versions.c.version == version)
        changed = self._connection.execute(update(model_versions).where(of_version).values(**values))
        if not changed.rowcount:
            row = {"task_serial": task.serial, "version": version, **values}
            self._connection.execute(insert(model_versions), row)
        return self.get(task.serial, version)

    def get(self, task_serial: int, version: int) -> ModelVersion:
        """One version."""
        of_version = {"task_serial": task_serial, "version": version}
        row = self._connection.execute(_MODEL, of_version).one_or_none()
        if row is None:
            raise ModelNotFoundError(version)
        return as_dataclass(ModelVersion, row)

    def referenced(self, digests: Collection[str]) -> set[str]:
        """Which of these files are still of use: models, and what came from clients of rounds under way.

        What one client sent is nobody's business once it is part of a model, nor is there room for all of it.
        """
        models = select(model_versions.c.digest).where(model_versions.c.digest.in_(digests))
        found = set(self._connection.execute(models).scalars())
        for table in (updates, trainings):
            of_round = table.c.round_serial == rounds.c.serial
            query = select(table.c.digest).join_from(table, rounds, of_round)
            still_used = (table.c.digest.in_(digests), rounds.c.state.in_(OPEN_STATES))
            found.update(self._connection.execute(query.where(*still_used)).scalars())
        return found

    def add_score(self, task: Task, version: int, part: int, score: Score) -> None:
        """Keep how a version did on a part of the validation data."""
        row = {"task_serial": task.serial, "version": version, "part": part, **vars(score)}
        self._connection.execute(insert(evaluation_parts), row)

    def scores(self, task_serial: int, version: int) -> list[Score]:
        """How a version did on the parts that are done."""
        query = select(evaluation_parts).where(
            evaluation_parts.c.task_serial == task_serial, evaluation_parts.c.version == version
        )
        rows = self._connection.execute(query.order_by(evaluation_parts.c.part))
        return [as_dataclass(Score, row) for row in rows]

    def add_evaluation(self, task: Task, evaluation: Evaluation) -> None:
        """Keep how good a version is."""
        self._connection.execute(insert(evaluations), {"task_serial": task.serial, **vars(evaluation)})

    def evaluation(self, task_serial: int, version: int) -> Evaluation | None:
        """How good a version is, if that is known."""
        return self.evaluations(task_serial).get(version)

    def evaluations(self, task_serial: int) -> dict[int, Evaluation]:
        """What is known of each version."""
        query = select(evaluations).where(evaluations.c.task_serial == task_serial)
        return {row.version: as_dataclass(Evaluation, row) for row in self._connection.execute(query)}


def _task(row: Row[Any]) -> Task:
    terms = as_dataclass(TaskTerms, row)
    return as_dataclass(Task, row, terms=terms)
