"""Counts for monitoring, the overview of tasks, and the progress of rounds, in few queries."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Column, Select, bindparam, func, or_, select

from services.domain.jobs import JobState
from services.domain.rounds import OPEN_STATES, CandidateOutcome, Round, RoundState, SlotOutcome
from services.domain.tasks import TaskState
from services.storage.sql import Repository, as_dataclass
from services.storage.tables import (
    candidates,
    clients,
    evaluations,
    jobs,
    model_versions,
    resource_reports,
    rounds,
    slots,
    tasks,
)


@dataclass(frozen=True)
class StateCounts:
    """Numbers of clients, tasks, rounds, jobs, slots and candidates by state."""

    clients: int
    tasks: Mapping[str, float]
    rounds: Mapping[str, float]
    jobs: Mapping[str, float]
    open_slots: Mapping[str, float]
    open_candidates: Mapping[str, float]
    selected: int
    """Over all rounds."""
    accuracy: Mapping[str, float]
    """Accuracy of each task's newest evaluated model, by task id."""


def _by(column: Column[Any]) -> Select[Any]:
    return select(column, func.count()).group_by(column)


_CLIENTS = select(func.count()).select_from(clients)
_TASKS = _by(tasks.c.state)
_ROUNDS = _by(rounds.c.state)
_JOBS = _by(jobs.c.state)
_OPEN_SLOTS = _by(slots.c.outcome).where(
    slots.c.round_serial.in_(select(rounds.c.serial).where(rounds.c.state.in_(OPEN_STATES)))
)
_OPEN_CANDIDATES = _by(candidates.c.outcome).where(
    candidates.c.round_serial.in_(select(rounds.c.serial).where(rounds.c.state.in_(OPEN_STATES)))
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


class Counts(Repository):
    """The counts of a database."""

    def take(self) -> StateCounts:
        """Count now."""
        return StateCounts(
            clients=self._number(_CLIENTS),
            tasks=self._counts(TaskState, _TASKS),
            rounds=self._counts(RoundState, _ROUNDS),
            jobs=self._counts(JobState, _JOBS),
            open_slots=self._counts(SlotOutcome, _OPEN_SLOTS),
            open_candidates=self._counts(CandidateOutcome, _OPEN_CANDIDATES),
            selected=self._number(_SELECTED),
            accuracy={row.task_id: row.accuracy for row in self._connection.execute(_ACCURACY)},
        )

    def _number(self, query: Select[Any]) -> int:
        return int(self._connection.execute(query).scalar_one())

    def _counts(self, kinds: type[StrEnum], query: Select[Any]) -> dict[str, float]:
        """Counts with zeros for absent states: an alert needs an existing series."""
        found = {row[0].value: row[1] for row in self._connection.execute(query)}
        return {kind.value: found.get(kind.value, 0) for kind in kinds}


_MAX_POINTS = 30
"""Points of a sparkline."""

_SHOWN = tasks.c.serial.in_(bindparam("serials", expanding=True))
_NEWEST_ROUNDS = (
    select(rounds, tasks.c.task_id)
    .join_from(tasks, rounds, (rounds.c.task_serial == tasks.c.serial) & (rounds.c.number == tasks.c.rounds))
    .where(_SHOWN)
)
_later = evaluations.alias()
_newest_version = (
    select(func.max(_later.c.version)).where(_later.c.task_serial == tasks.c.serial).scalar_subquery()
)
_CURVES = (
    select(evaluations.c.task_serial, evaluations.c.accuracy)
    .join_from(tasks, evaluations, evaluations.c.task_serial == tasks.c.serial)
    .where(
        _SHOWN,
        or_(
            evaluations.c.version % (tasks.c.model_version // _MAX_POINTS + 1) == 0,
            evaluations.c.version == _newest_version,
        ),
    )
    .order_by(evaluations.c.task_serial, evaluations.c.version)
)
_CLIENTS_IN_OVERVIEW = select(func.count()).select_from(clients)
_FRESH_CLIENTS = _CLIENTS_IN_OVERVIEW.where(
    select(resource_reports.c.serial)
    .where(
        resource_reports.c.client_serial == clients.c.serial,
        resource_reports.c.observed_at >= bindparam("since"),
    )
    .exists()
)
_JOBS_IN_OVERVIEW = select(
    func.count().filter(jobs.c.state == JobState.WAITING).label("waiting"),
    func.min(jobs.c.created_at).filter(jobs.c.state == JobState.WAITING).label("waiting_since"),
    func.count()
    .filter(jobs.c.state == JobState.LEASED, jobs.c.lease_expires_at > bindparam("now"))
    .label("under_way"),
).where(jobs.c.state.in_((JobState.WAITING, JobState.LEASED)))

_FAILED_JOBS = (
    select(func.count())
    .select_from(jobs)
    .where(jobs.c.state == JobState.FAILED, jobs.c.finished_at >= bindparam("since"))
)


@dataclass(frozen=True)
class UnfinishedJobs:
    """The jobs that are waiting or running."""

    waiting: int
    waiting_since: datetime | None
    under_way: int


class Overview(Repository):
    """The overview of a database."""

    def newest_rounds(self, task_serials: Sequence[int]) -> dict[int, Round]:
        """The newest round of each of these tasks that has one."""
        rows = self._connection.execute(_NEWEST_ROUNDS, {"serials": task_serials})
        return {row.task_serial: as_dataclass(Round, row) for row in rows}

    def accuracy_curves(self, task_serials: Sequence[int]) -> dict[int, list[float]]:
        """The accuracy of each task over time, thinned out; the last point is the newest."""
        curves: defaultdict[int, list[float]] = defaultdict(list)
        for serial, accuracy in self._connection.execute(_CURVES, {"serials": task_serials}).all():
            curves[serial].append(accuracy)
        return curves

    def best_accuracy(self, task_serial: int) -> float | None:
        """The highest accuracy of a task's models; none before the first evaluation."""
        query = select(func.max(evaluations.c.accuracy)).where(evaluations.c.task_serial == task_serial)
        best: float | None = self._connection.execute(query).scalar_one()
        return best

    def clients(self, since: datetime) -> tuple[int, int]:
        """The number of clients, and of clients with a report observed since a time."""
        enrolled: int = self._connection.execute(_CLIENTS_IN_OVERVIEW).scalar_one()
        fresh: int = self._connection.execute(_FRESH_CLIENTS, {"since": since}).scalar_one()
        return enrolled, fresh

    def failed_jobs(self, since: datetime) -> int:
        """The number of jobs that were given up since a time."""
        return int(self._connection.execute(_FAILED_JOBS, {"since": since}).scalar_one())

    def unfinished_jobs(self, now: datetime) -> UnfinishedJobs:
        """The numbers of waiting and running jobs."""
        return as_dataclass(UnfinishedJobs, self._connection.execute(_JOBS_IN_OVERVIEW, {"now": now}).one())


_OF_TASKS = rounds.c.task_serial.in_(bindparam("serials", expanding=True))
_ALL = (
    select(
        rounds.c.task_serial,
        rounds.c.round_id,
        rounds.c.number,
        rounds.c.state,
        rounds.c.outcome,
        rounds.c.asked,
        rounds.c.selected,
        rounds.c.received,
        rounds.c.task_elapsed_s,
        evaluations.c.accuracy,
        evaluations.c.loss,
        model_versions.c.evaluation_error,
    )
    .outerjoin_from(
        rounds,
        model_versions,
        (rounds.c.state == RoundState.AGGREGATED)
        & (model_versions.c.task_serial == rounds.c.task_serial)
        & (model_versions.c.version == rounds.c.model_version + 1),
    )
    .outerjoin(
        evaluations,
        (evaluations.c.task_serial == model_versions.c.task_serial)
        & (evaluations.c.version == model_versions.c.version),
    )
    .where(_OF_TASKS)
    .order_by(rounds.c.task_serial, rounds.c.number)
)
_SOME = _ALL.where(rounds.c.number.in_(bindparam("numbers", expanding=True)))
_FIRST = (
    select(rounds.c.task_serial, func.min(rounds.c.number).label("number"))
    .join_from(
        rounds,
        evaluations,
        (evaluations.c.task_serial == rounds.c.task_serial)
        & (evaluations.c.version == rounds.c.model_version + 1),
    )
    .where(_OF_TASKS, rounds.c.state == RoundState.AGGREGATED, evaluations.c.accuracy >= bindparam("least"))
    .group_by(rounds.c.task_serial)
)


class RoundProgress(NamedTuple):
    """A round and the evaluation of its model."""

    round_id: str
    number: int
    state: RoundState
    outcome: str | None
    asked: int
    selected: int
    received: int
    elapsed_s: float | None
    """Elapsed time of the task at its end; none while it is open."""
    accuracy: float | None
    """None if there is no model or it is not evaluated."""
    loss: float | None
    evaluation_error: str | None
    """Why the evaluation failed."""


class Progress(Repository):
    """The progress of the tasks in a database."""

    def of_tasks(self, task_serials: Sequence[int]) -> Mapping[int, Sequence[RoundProgress]]:
        """The rounds of each of these tasks that has any, oldest first, by the task's serial."""
        return _by_task(self._connection.execute(_ALL, {"serials": task_serials}).all())

    def rounds(
        self, task_serials: Sequence[int], numbers: Collection[int]
    ) -> Mapping[int, Sequence[RoundProgress]]:
        """The same, of the rounds with these numbers only."""
        given = {"serials": task_serials, "numbers": list(numbers)}
        return _by_task(self._connection.execute(_SOME, given).all())

    def first_with(self, task_serials: Sequence[int], accuracy: float) -> dict[int, int]:
        """The number of each task's first round with at least this accuracy, if there is one."""
        rows = self._connection.execute(_FIRST, {"serials": task_serials, "least": accuracy})
        return {row.task_serial: row.number for row in rows}


def _by_task(rows: Iterable[Sequence[Any]]) -> dict[int, list[RoundProgress]]:
    found: defaultdict[int, list[RoundProgress]] = defaultdict(list)
    for serial, *values in rows:
        found[serial].append(RoundProgress(*values))
    return dict(found)
