"""What the overview of all tasks shows, in a few queries however many tasks there are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, or_, select

from services.domain.jobs import JobState
from services.domain.rounds import Round
from services.storage.rows import as_dataclass
from services.storage.tables import clients, evaluations, jobs, resource_reports, rounds, tasks

_MOST_POINTS = 30
"""Of a curve that is drawn as small as a word."""

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
            evaluations.c.version % (tasks.c.model_version // _MOST_POINTS + 1) == 0,
            evaluations.c.version == _newest_version,
        ),
    )
    .order_by(evaluations.c.task_serial, evaluations.c.version)
)
_CLIENTS = select(func.count()).select_from(clients)
_FRESH_CLIENTS = _CLIENTS.where(
    select(resource_reports.c.serial)
    .where(
        resource_reports.c.client_serial == clients.c.serial,
        resource_reports.c.observed_at >= bindparam("since"),
    )
    .exists()
)
_JOBS = select(
    func.count().filter(jobs.c.state == JobState.WAITING).label("waiting"),
    func.min(jobs.c.created_at).filter(jobs.c.state == JobState.WAITING).label("waiting_since"),
    func.count()
    .filter(jobs.c.state == JobState.LEASED, jobs.c.lease_expires_at > bindparam("now"))
    .label("under_way"),
).where(jobs.c.state.in_((JobState.WAITING, JobState.LEASED)))


@dataclass(frozen=True)
class UnfinishedJobs:
    """The work that workers have, and that waits for them."""

    waiting: int
    waiting_since: datetime | None
    under_way: int


class Overview:
    """The overview of a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def newest_rounds(self, task_serials: Sequence[int]) -> dict[int, Round]:
        """The newest round of each of these tasks that has one."""
        rows = self._connection.execute(_NEWEST_ROUNDS, {"serials": task_serials})
        return {row.task_serial: as_dataclass(Round, row) for row in rows}

    def accuracy_curves(self, task_serials: Sequence[int]) -> dict[int, list[float]]:
        """How each task's accuracy went, oldest first, thinned out; the last is always the newest."""
        curves: defaultdict[int, list[float]] = defaultdict(list)
        for serial, accuracy in self._connection.execute(_CURVES, {"serials": task_serials}).all():
            curves[serial].append(accuracy)
        return curves

    def clients(self, since: datetime) -> tuple[int, int]:
        """How many clients are enrolled, and how many of them have a report observed since a moment."""
        enrolled: int = self._connection.execute(_CLIENTS).scalar_one()
        fresh: int = self._connection.execute(_FRESH_CLIENTS, {"since": since}).scalar_one()
        return enrolled, fresh

    def unfinished_jobs(self, now: datetime) -> UnfinishedJobs:
        """What workers are doing, and what waits for them."""
        return as_dataclass(UnfinishedJobs, self._connection.execute(_JOBS, {"now": now}).one())
