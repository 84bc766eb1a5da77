"""``/dashboard/tasks``: all tasks, searched, filtered and sorted; other pages show the same rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from operator_api.dashboard.login import local_path
from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import chosen, render
from operator_api.dependencies import PagingDep, ServiceDep
from operator_api.security import Access, access
from services.contract.common import TaskId
from services.domain.rounds import Round
from services.domain.tasks import Task, TaskState
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task, delete_task, finish_by_operator
from services.storage.database import Store
from services.storage.searches import TaskOrder

WIDTH, HEIGHT = 120, 28
_MARGIN = 2


def polyline(shares: Sequence[float]) -> str:
    """The ``points`` of an SVG line from left to right, 0 at the bottom and 1 at the top."""
    steps = max(len(shares) - 1, 1)
    across, up = WIDTH - 2 * _MARGIN, HEIGHT - 2 * _MARGIN
    points = [
        (_MARGIN + across * place / steps, _MARGIN + up * (1 - share)) for place, share in enumerate(shares)
    ]
    if len(points) == 1:
        points *= 2  # a line to itself is a dot; a point alone is not drawn
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True)
class TaskRow:
    """A task, its newest round and the accuracy of its models."""

    task: Task
    newest_round: Round | None
    accuracies: Sequence[float]
    waits: bool = False
    """Whether it waits for resource blocks."""

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
    def can_finish(self) -> bool:
        """Whether it can be finished: it has a model, and it is not about to end."""
        return self.task.state in {TaskState.READY, TaskState.RUNNING} and self.task.outcome is None

    @property
    def state(self) -> str:
        """The state in a word; a task in which nothing happens is idle."""
        if self.waits:
            return "waiting"
        starts_rounds = self.task.terms.auto_advance and self.task.state is TaskState.RUNNING
        return "idle" if self.can_open_round and not starts_rounds else self.task.state.value

    @property
    def state_text(self) -> str:
        """What the operator can do about it."""
        return {"idle": "idle: open a round", "waiting": "waiting for resource blocks"}.get(
            self.state, self.state
        )

    @property
    def active_at(self) -> datetime:
        """When something happened last."""
        active_at = self.newest_round.active_at if self.newest_round else self.task.created_at
        return self.task.ended_at or active_at

    @property
    def points(self) -> str:
        """Of the line that shows how its accuracy went."""
        return polyline(self.accuracies)


def load_rows(store: Store, tasks: Sequence[Task], now: datetime) -> list[TaskRow]:
    """The rows of these tasks."""
    serials = [task.serial for task in tasks]
    rounds = store.overview.newest_rounds(serials)
    curves = store.overview.accuracy_curves(serials)
    waiting = {task.task_serial for task in store.waiting_tasks.all(now)}
    return [
        TaskRow(task, rounds.get(task.serial), curves.get(task.serial, ()), task.serial in waiting)
        for task in tasks
    ]


router = APIRouter(route_class=PageRoute, include_in_schema=False)

SearchText = Annotated[str, Query(alias="q", max_length=128)]


@router.get("/dashboard/tasks", openapi_extra=access(Access.READ))
def show_tasks(
    request: Request,
    service: ServiceDep,
    paging: PagingDep,
    text: SearchText = "",
    state: TaskState | Annotated[str, Query(pattern="^$")] = "",
    order: Annotated[TaskOrder, Query(alias="sort")] = TaskOrder.CREATED,
) -> Response:
    """The tasks that are wanted."""
    database = service.database
    with database.reading() as store:
        found = store.searches.tasks(text.strip(), TaskState(state) if state else None, order, paging)
        rows = load_rows(store, found.items, database.now())
    return render(
        request,
        "tasks.html",
        rows=rows,
        total=found.total,
        page_number=paging.page,
        pages=max(math.ceil(found.total / paging.per_page), 1),
        query=chosen(q=text, state=state, sort="" if order is TaskOrder.CREATED else order),
        text=text,
        state=state,
        states=[("", "any"), *((state.value, state.value) for state in TaskState)],
        order=order,
        orders=[("created", "created, newest first"), ("activity", "last activity"), ("name", "name")],
    )


@router.post("/dashboard/tasks/{task_id}/rounds", openapi_extra=access(Access.MANAGE))
def open_next_round(
    request: Request, task_id: Annotated[TaskId, Path()], service: ServiceDep, form: FormDep
) -> Response:
    """Open a round of a task."""
    with service.database.unit_of_work() as uow:
        open_round(uow, task_id, service.database.now())
        uow.commit()
    return _back(request, form)


@router.post("/dashboard/tasks/{task_id}/cancel", openapi_extra=access(Access.MANAGE))
def cancel(
    request: Request, task_id: Annotated[TaskId, Path()], service: ServiceDep, form: FormDep
) -> Response:
    """Cancel a task and its open round."""
    with service.database.unit_of_work() as uow:
        cancel_task(uow, task_id, service.database.now())
        uow.commit()
    return _back(request, form)


@router.post("/dashboard/tasks/{task_id}/finish", openapi_extra=access(Access.MANAGE))
def finish(
    request: Request, task_id: Annotated[TaskId, Path()], service: ServiceDep, form: FormDep
) -> Response:
    """End a task as finished; its open round is closed first."""
    with service.database.unit_of_work() as uow:
        finish_by_operator(uow, task_id, service.database.now())
        uow.commit()
    return _back(request, form)


@router.post("/dashboard/tasks/{task_id}/delete", openapi_extra=access(Access.MANAGE))
def delete(request: Request, task_id: Annotated[TaskId, Path()], service: ServiceDep) -> Response:
    """Delete a task that has ended, and go to the list."""
    with service.database.unit_of_work() as uow:
        delete_task(uow, task_id, service.database.now())
        uow.commit()
    return RedirectResponse(request.app.state.dashboard.templates.url("/dashboard/tasks"), 303)


def _back(request: Request, form: FormDep) -> Response:
    """To the page that the form was on."""
    return RedirectResponse(local_path(form.get("next", ""), request.app.state.dashboard.root), 303)
