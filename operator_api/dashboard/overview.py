"""``GET /``: what needs attention, the tasks under way, the cells, and what happened last."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from fastapi import APIRouter, Request, Response

from operator_api.dashboard.activity import EventRow, load_events
from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import as_duration, render
from operator_api.dashboard.setup import HealthSummary
from operator_api.dashboard.task_list import TaskRow, load_rows
from operator_api.dashboard.wording import CHECK_NAMES
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from operator_api.service import Service
from services.domain.cells import CellConfig
from services.domain.jobs import describe_problems
from services.storage.database import Database
from services.storage.searches import TaskOrder
from services.storage.sql import Paging
from services.storage.statistics import UnfinishedJobs

_SHOWN_TASKS = Paging(1, 8)
_SHOWN_EVENTS = 8
_MOST_STALE = 0.5
"""If a larger share of the clients has not reported in the last hour, that is an alert."""
_SHOWN_CELLS = Paging(1, 100)
_IDLE_TOO_LONG = timedelta(seconds=30)
"""If jobs wait this long and none is running, no worker takes them."""


@dataclass(frozen=True)
class CellRow:
    """A cell as the overview shows it."""

    cell: CellConfig
    clients: int
    held: int


@dataclass(frozen=True)
class HealthItem:
    """One part of the service, and how it is."""

    name: str
    state: Literal["ok", "warning", "bad", "unknown"]
    text: str

    @property
    def label(self) -> str:
        """What operators call it."""
        return CHECK_NAMES[self.name]


@dataclass(frozen=True)
class Alert:
    """Something that needs attention, and the page about it."""

    state: Literal["warning", "bad"]
    text: str
    path: str = ""


@dataclass(frozen=True)
class OverviewPage:
    """All that the overview shows."""

    rows: Sequence[TaskRow]
    """The tasks in which something happened last."""
    total: int
    health: Sequence[HealthItem]
    health_summary: HealthSummary
    cells: Sequence[CellRow]
    waiting: int
    """Tasks that wait for resource blocks."""
    events: Sequence[EventRow]

    @property
    def alerts(self) -> list[Alert]:
        """What needs attention, the worst first."""
        found = [
            Alert(item.state, f"{item.label.capitalize()}: {item.text}")
            for item in self.health
            if item.state in ("warning", "bad")
        ]
        summary = self.health_summary
        if summary.failed_jobs:
            jobs = "1 job has" if summary.failed_jobs == 1 else f"{summary.failed_jobs:,} jobs have"
            found.append(Alert("bad", f"{jobs} failed in the last day", "/dashboard/activity?group=job"))
        if summary.clients and summary.fresh_clients is not None:
            stale = summary.clients - summary.fresh_clients
            if stale > _MOST_STALE * summary.clients:
                text = f"{stale:,} of {summary.clients:,} clients have not reported in the last hour"
                found.append(Alert("warning", text, "/dashboard/clients?state=stale"))
        return sorted(found, key=lambda task: task.state)


def load_overview(database: Database, health_summary: HealthSummary) -> OverviewPage:
    """Read what the overview shows."""
    now = database.now()
    with database.reading() as store:
        found = store.searches.tasks("", None, TaskOrder.ACTIVITY, _SHOWN_TASKS)
        jobs = store.overview.unfinished_jobs(now)
        problems = describe_problems(store.workers.live(now), store.refusals.standing(now))
        clients, held = store.cells.client_counts(), store.allocations.held()
        cells = [
            CellRow(cell, clients.get(cell.cell_id, 0), len(held.get(cell.cell_id, ())))
            for cell in store.cells.page(_SHOWN_CELLS).items
        ]
        return OverviewPage(
            rows=load_rows(store, found.items, now),
            total=found.total,
            health=[*_checked(health_summary), _workers(_jobs(jobs, now), problems)],
            health_summary=health_summary,
            cells=cells,
            waiting=len(store.waiting_tasks.all(now)),
            events=load_events(store, _SHOWN_EVENTS)[0],
        )


def _checked(health_summary: HealthSummary) -> list[HealthItem]:
    """The checks of ``/readyz``; without a broker the service works, but workers are not notified."""
    names = ("database", "migrations", "disk", "model_store", "broker")
    return [_check(name, health_summary.checks.get(name)) for name in names]


def _check(name: str, said: str | None) -> HealthItem:
    if said is None:
        return HealthItem(name, "unknown", "not checked")
    if said == "ok":
        return HealthItem(name, "ok", said)
    return HealthItem(name, "warning" if name == "broker" else "bad", said)


def _workers(jobs: HealthItem, problems: str) -> HealthItem:
    """How the jobs go, and what is wrong with which worker's host."""
    if not problems:
        return jobs
    return HealthItem("workers", "bad" if jobs.state == "bad" else "warning", f"{problems}. {jobs.text}")


def _jobs(jobs: UnfinishedJobs, now: datetime) -> HealthItem:
    if jobs.under_way:
        return HealthItem("workers", "ok", f"jobs: {jobs.under_way} under way, {jobs.waiting} waiting")
    if jobs.waiting_since is None:
        return HealthItem("workers", "ok", "nothing to do")
    waited = now - jobs.waiting_since
    text = f"jobs: none under way, {jobs.waiting} waiting for {as_duration(waited.total_seconds())}"
    if waited < _IDLE_TOO_LONG:
        return HealthItem("workers", "ok", text)
    return HealthItem("workers", "bad", f"{text}: start one with fedcs worker")


router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)


@router.get("/", openapi_extra=access(Access.READ))
def show_overview(request: Request, service: ServiceDep) -> Response:
    """What needs attention, the tasks under way, the cells, and what happened last."""
    return render(request, "overview.html", overview=_load(request, service))


@data.get("/dashboard/data/overview", openapi_extra=access(Access.READ))
def refresh_overview(request: Request, service: ServiceDep) -> Response:
    """The parts of the overview that change."""
    return render(request, "overview_parts.html", overview=_load(request, service))


def _load(request: Request, service: Service) -> OverviewPage:
    return load_overview(service.database, request.app.state.dashboard.health_summary.now())
