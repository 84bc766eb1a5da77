"""What the overview shows: the tasks of a page, each with its newest round, and how the service is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from operator_api.dashboard.formats import as_duration
from operator_api.dashboard.sparkline import polyline
from operator_api.dashboard.vitals import Vitals
from services.domain.rounds import Round
from services.domain.tasks import Task, TaskState
from services.storage.database import Database
from services.storage.overview import UnfinishedJobs
from services.storage.rows import Paging

_IDLE_TOO_LONG = timedelta(seconds=30)
"""Jobs that wait for so long while none is under way: nobody takes them."""


@dataclass(frozen=True)
class TaskRow:
    """A task as the overview shows it."""

    task: Task
    newest_round: Round | None
    accuracies: Sequence[float]

    @property
    def open_round(self) -> Round | None:
        """The round that is under way."""
        return self.newest_round if self.newest_round and self.newest_round.is_open else None

    @property
    def rounds_done(self) -> int:
        """How many rounds are over, failed ones included."""
        return self.task.rounds - (self.open_round is not None)

    @property
    def can_open_round(self) -> bool:
        """Whether it makes sense to ask for the next round; the protocol has the last word."""
        return self.task.state in {TaskState.READY, TaskState.RUNNING} and self.open_round is None

    @property
    def points(self) -> str:
        """Of the line that shows how its accuracy went."""
        return polyline(self.accuracies)


@dataclass(frozen=True)
class HealthItem:
    """One part of the service, and how it is."""

    name: str
    state: Literal["ok", "warning", "bad", "unknown"]
    text: str


@dataclass(frozen=True)
class OverviewPage:
    """All that the overview shows."""

    rows: Sequence[TaskRow]
    total: int
    page: int
    pages: int
    health: Sequence[HealthItem]
    vitals: Vitals


def load_overview(database: Database, vitals: Vitals, paging: Paging) -> OverviewPage:
    """Read what the overview shows."""
    now = database.now()
    with database.reading() as store:
        found = store.tasks.page(paging, None)
        serials = [task.serial for task in found.items]
        rounds = store.overview.newest_rounds(serials)
        curves = store.overview.accuracy_curves(serials)
        jobs = store.overview.unfinished_jobs(now)
    return OverviewPage(
        rows=[TaskRow(one, rounds.get(one.serial), curves.get(one.serial, ())) for one in found.items],
        total=found.total,
        page=paging.page,
        pages=max(math.ceil(found.total / paging.per_page), 1),
        health=[*_checked(vitals), _workers(jobs, now)],
        vitals=vitals,
    )


def _checked(vitals: Vitals) -> list[HealthItem]:
    """What ``/readyz`` checks; without a broker all is kept, but nobody is woken up."""
    names = ("database", "migrations", "disk", "model_store", "broker")
    return [_check(name, vitals.checks.get(name)) for name in names]


def _check(name: str, said: str | None) -> HealthItem:
    if said is None:
        return HealthItem(name, "unknown", "not checked")
    if said == "ok":
        return HealthItem(name, "ok", said)
    return HealthItem(name, "warning" if name == "broker" else "bad", said)


def _workers(jobs: UnfinishedJobs, now: datetime) -> HealthItem:
    if jobs.under_way:
        return HealthItem("workers", "ok", f"jobs: {jobs.under_way} under way, {jobs.waiting} waiting")
    if jobs.waiting_since is None:
        return HealthItem("workers", "ok", "nothing to do")
    waited = now - jobs.waiting_since
    text = f"jobs: none under way, {jobs.waiting} waiting for {as_duration(waited.total_seconds())}"
    if waited < _IDLE_TOO_LONG:
        return HealthItem("workers", "ok", text)
    return HealthItem("workers", "bad", f"{text}: start one with fedcs worker")
