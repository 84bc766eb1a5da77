"""How many there are of everything, for monitoring."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Column, Connection, Select, func, select

from services.domain.jobs import JobState
from services.domain.rounds import OPEN_STATES, RoundState, SlotOutcome
from services.domain.tasks import TaskState
from services.storage.tables import clients, evaluations, jobs, rounds, slots, tasks


@dataclass(frozen=True)
class StateCounts:
    """How many there are of everything."""

    clients: int
    tasks: Mapping[str, float]
    rounds: Mapping[str, float]
    jobs: Mapping[str, float]
    open_slots: Mapping[str, float]
    selected: int
    """Over all rounds."""
    accuracy: Mapping[str, float]
    """Of each task's newest evaluated model, by the task's id."""


def _by(column: Column[Any]) -> Select[Any]:
    return select(column, func.count()).group_by(column)


_CLIENTS = select(func.count()).select_from(clients)
_TASKS = _by(tasks.c.state)
_ROUNDS = _by(rounds.c.state)
_JOBS = _by(jobs.c.state)
_OPEN_SLOTS = _by(slots.c.outcome).where(
    slots.c.round_serial.in_(select(rounds.c.serial).where(rounds.c.state.in_(OPEN_STATES)))
)
_SELECTED = select(func.coalesce(func.sum(rounds.c.selected), 0))
_NEWEST = (
    select(evaluations.c.task_serial, func.max(evaluations.c.version).label("version"))
    .group_by(evaluations.c.task_serial)
    .subquery()
)
_ACCURACY = (
    select(tasks.c.task_id, evaluations.c.accuracy)
    .join_from(evaluations, tasks, tasks.c.serial == evaluations.c.task_serial)
    .join(
        _NEWEST,
        (_NEWEST.c.task_serial == evaluations.c.task_serial) & (_NEWEST.c.version == evaluations.c.version),
    )
)


class Counts:
    """The counts of a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def take(self) -> StateCounts:
        """Count now."""
        return StateCounts(
            clients=self._number(_CLIENTS),
            tasks=self._counts(TaskState, _TASKS),
            rounds=self._counts(RoundState, _ROUNDS),
            jobs=self._counts(JobState, _JOBS),
            open_slots=self._counts(SlotOutcome, _OPEN_SLOTS),
            selected=self._number(_SELECTED),
            accuracy={row.task_id: row.accuracy for row in self._connection.execute(_ACCURACY)},
        )

    def _number(self, query: Select[Any]) -> int:
        return int(self._connection.execute(query).scalar_one())

    def _counts(self, kinds: type[StrEnum], query: Select[Any]) -> dict[str, float]:
        """Zero where there are none: an alarm cannot watch what is not there."""
        found = {row[0].value: row[1] for row in self._connection.execute(query)}
        return {kind.value: found.get(kind.value, 0) for kind in kinds}
