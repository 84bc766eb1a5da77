"""``/dashboard/tasks/{task_id}``: metrics of a task, alone or beside others, and their downloads."""

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from operator import attrgetter
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import attachment_header, render
from operator_api.dashboard.task_list import TaskRow, load_rows
from operator_api.dependencies import PagingDep, ServiceDep
from operator_api.model_files import IfNoneMatch
from operator_api.routes.tasks import send_version
from operator_api.security import Access, access
from services.contract.common import TaskId
from services.domain.tasks import Task
from services.escaping import escape_formula
from services.storage.database import Database, Store
from services.storage.sql import Paging
from services.storage.statistics import RoundProgress

MAX_OTHERS = 5
"""As many tasks as there are colours to tell them apart, less the page's own."""
MAX_THRESHOLDS = 4
_MAX_NUMBER_LENGTH = 32


@dataclass(frozen=True)
class Comparison:
    """The choices in the address of a task page."""

    others: Sequence[str]
    """Ids of tasks, each once."""
    thresholds: Sequence[float]
    """From low to high; empty if none was asked for."""

    @property
    def query(self) -> dict[str, Sequence[object]]:
        """The same, for addresses."""
        percents = [f"{threshold * 100:.10g}" for threshold in self.thresholds]
        chosen = {"with": self.others, "threshold": percents}
        return {name: values for name, values in chosen.items() if values}


async def _read_comparison(
    others: Annotated[list[TaskId], Query(alias="with")] = [],  # noqa: B006 - FastAPI copies it
    threshold: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Comparison:
    """Fields of the form that were left empty do not count."""
    asked = list(dict.fromkeys(others))
    if len(asked) > MAX_OTHERS:
        raise HTTPException(422, f"Compare with at most {MAX_OTHERS} other tasks.")
    thresholds = sorted({_read_threshold(text) for text in threshold if text.strip()})
    if len(thresholds) > MAX_THRESHOLDS:
        raise HTTPException(422, f"There can be at most {MAX_THRESHOLDS} thresholds.")
    return Comparison(asked, thresholds)


def _read_threshold(text: str) -> float:
    try:
        value = float(text) if len(text) <= _MAX_NUMBER_LENGTH else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise HTTPException(422, "A threshold is an accuracy in percent: more than 0, and at most 100.")
    return value / 100


ComparisonDep = Annotated[Comparison, Depends(_read_comparison)]


_DEFAULT_THRESHOLDS = (0.5, 0.75)
_RECENT = Paging(1, 20)
"""The tasks that are offered for comparison."""


@dataclass(frozen=True)
class TaskProgress:
    """A task, round by round."""

    task: Task
    rounds: Sequence[RoundProgress]


@dataclass(frozen=True)
class Milestones:
    """A task, and the rounds in which it reached the thresholds."""

    task: Task
    accuracy: float | None
    """Of the newest model that was evaluated."""
    arrivals: Sequence[RoundProgress | None]
    """For each threshold the round that first reached it."""


@dataclass(frozen=True)
class TaskPage:
    """All that a task page shows."""

    row: TaskRow
    best: float | None
    """The highest accuracy of its models."""
    milestones: Sequence[Milestones]
    """The page's own first."""
    thresholds: Sequence[float]
    recent: Sequence[Task]
    """What it can be compared with, newest first; those it is compared with always among them."""
    comparison: Comparison
    page: int
    pages: int
    shown_rounds: Sequence[RoundProgress]
    """Of the task, newest first."""


def load_progress(database: Database, task_ids: Sequence[str]) -> list[TaskProgress]:
    """All rounds of these tasks; a task that is named twice comes once."""
    with database.reading() as store:
        tasks = _tasks(store, task_ids)
        rounds = store.progress.of_tasks([task.serial for task in tasks])
    return [TaskProgress(task, rounds.get(task.serial, ())) for task in tasks]


def load_task_page(database: Database, task_id: str, comparison: Comparison, paging: Paging) -> TaskPage:
    """Read what the page of a task shows: of thousands of rounds those on it, and those of the arrivals."""
    with database.reading() as store:
        tasks = _tasks(store, [task_id, *comparison.others])
        own, serials = tasks[0], [task.serial for task in tasks]
        thresholds = comparison.thresholds or _default_thresholds(own)
        firsts = [store.progress.first_with(serials, threshold) for threshold in thresholds]
        last = own.rounds - (paging.page - 1) * paging.per_page
        on_page = range(last, max(last - paging.per_page, 0), -1)
        known = _rounds(store, tasks, {*on_page, *(number for first in firsts for number in first.values())})
        curves = store.overview.accuracy_curves(serials)
        (row,) = load_rows(store, [own], database.now())
        best = store.overview.best_accuracy(own.serial)
        recent = store.tasks.page(_RECENT, None).items
    milestones = [
        Milestones(
            task,
            accuracy=curves[task.serial][-1] if task.serial in curves else None,
            arrivals=[known[task.serial].get(first.get(task.serial, 0)) for first in firsts],
        )
        for task in tasks
    ]
    return TaskPage(
        row=row,
        best=best,
        milestones=milestones,
        thresholds=thresholds,
        recent=_offered(recent, tasks),
        comparison=comparison,
        page=paging.page,
        pages=max(math.ceil(own.rounds / paging.per_page), 1),
        shown_rounds=[known[own.serial][number] for number in on_page],
    )


def _tasks(store: Store, task_ids: Sequence[str]) -> list[Task]:
    return [store.tasks.get(task_id) for task_id in dict.fromkeys(task_ids)]


def _rounds(
    store: Store, tasks: Sequence[Task], numbers: Collection[int]
) -> Mapping[int, Mapping[int, RoundProgress]]:
    """These rounds of the tasks, by the task's serial and the round's number."""
    found = store.progress.rounds([task.serial for task in tasks], numbers)
    return {task.serial: {round_.number: round_ for round_ in found.get(task.serial, ())} for task in tasks}


def _default_thresholds(task: Task) -> Sequence[float]:
    target = task.terms.target_accuracy
    return _DEFAULT_THRESHOLDS if target is None else (target,)


def _offered(recent: Sequence[Task], shown: Sequence[Task]) -> list[Task]:
    own, *others = shown
    offered = {task.task_id: task for task in (*recent, *others) if task.task_id != own.task_id}
    return sorted(offered.values(), key=lambda task: task.serial, reverse=True)


_COLUMNS = ("number", "elapsed_s", "accuracy", "loss", "asked", "selected", "received", "state")


def progress_json(progress: TaskProgress, first: int) -> bytes:
    """The rounds of a task from this number on: columns, not objects, for there may be thousands."""
    rows = [_values(round_) for round_ in progress.rounds if round_.number >= first]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    rounds = {name: list(column) for name, column in zip(_COLUMNS, columns, strict=True)}
    return json.dumps({"evaluates": progress.task.terms.dataset is not None, **rounds}).encode()


def progress_csv(tasks: Sequence[TaskProgress]) -> str:
    """All rounds of some tasks."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(("task_id", "task", "policy", *_COLUMNS))
    for progress in tasks:
        terms = progress.task.terms
        about = (progress.task.task_id, escape_formula(terms.name), terms.policy)
        writer.writerows((*about, *_values(round_)) for round_ in progress.rounds)
    return text.getvalue()


_values = attrgetter(*_COLUMNS)


router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_TaskPath = Annotated[TaskId, Path()]


@router.get("/dashboard/tasks/{task_id}", openapi_extra=access(Access.READ))
def show_task(
    request: Request, task_id: _TaskPath, service: ServiceDep, comparison: ComparisonDep, paging: PagingDep
) -> Response:
    """The page of a task."""
    shown = load_task_page(service.database, task_id, comparison, paging)
    return _render(request, "task.html", shown)


@data.get("/dashboard/data/tasks/{task_id}/parts", openapi_extra=access(Access.READ))
def refresh_task(
    request: Request, task_id: _TaskPath, service: ServiceDep, comparison: ComparisonDep, paging: PagingDep
) -> Response:
    """The parts of the page that change, as the page has them."""
    shown = load_task_page(service.database, task_id, comparison, paging)
    return _render(request, "task_parts.html", shown)


@data.get("/dashboard/data/tasks/{task_id}", openapi_extra=access(Access.READ))
def send_progress(
    task_id: _TaskPath, service: ServiceDep, first: Annotated[int, Query(ge=1, le=2**31 - 1)] = 1
) -> Response:
    """The task's rounds from the ``first`` on, in columns."""
    (progress,) = load_progress(service.database, [task_id])
    return Response(progress_json(progress, first), media_type="application/json")


@router.get("/dashboard/tasks/{task_id}/metrics.csv", openapi_extra=access(Access.READ))
def download_metrics(task_id: _TaskPath, service: ServiceDep, comparison: ComparisonDep) -> Response:
    """The rounds of the task and of those it is compared with."""
    progress = load_progress(service.database, [task_id, *comparison.others])
    return Response(
        progress_csv(progress), media_type="text/csv", headers=attachment_header(f"{task_id}-metrics.csv")
    )


@router.get("/dashboard/tasks/{task_id}/models", openapi_extra=access(Access.READ))
def show_models(request: Request, task_id: _TaskPath, service: ServiceDep, paging: PagingDep) -> Response:
    """All versions of the task's model, newest first."""
    with service.database.reading() as store:
        task = store.tasks.get(task_id)
        found = store.models.page(task.serial, paging)
        evaluations = store.models.evaluations(task.serial)
    return render(
        request,
        "models.html",
        task=task,
        models=found.items,
        evaluations=evaluations,
        path=f"/dashboard/tasks/{task_id}/models",
        page_number=paging.page,
        pages=max(math.ceil(found.total / paging.per_page), 1),
    )


@router.get("/dashboard/tasks/{task_id}/models/{version}", openapi_extra=access(Access.READ))
def download_model(
    task_id: _TaskPath,
    version: Annotated[int, Path(ge=0, le=2**31 - 1)],
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A version of the task's model, as safetensors."""
    response = send_version(service, task_id, version, if_none_match)
    response.headers.update(attachment_header(f"{task_id}-v{version}.safetensors"))
    return response


def _render(request: Request, template: str, shown: TaskPage) -> Response:
    path = f"/dashboard/tasks/{shown.row.task.task_id}"
    here = request.app.state.dashboard.templates.url(path, **shown.comparison.query)
    return render(
        request,
        template,
        plots=True,
        shown=shown,
        task=shown.row.task,
        terms=asdict(shown.row.task.terms),
        path=path,
        query=shown.comparison.query,
        here=here,
        max_others=MAX_OTHERS,
        max_thresholds=MAX_THRESHOLDS,
    )
