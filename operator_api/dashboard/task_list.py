"""``/dashboard/tasks``: all tasks, searched, filtered and sorted; opens rounds and cancels."""

import math
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from operator_api.dashboard.login import local_path
from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import chosen, render
from operator_api.dashboard.task_row import load_rows
from operator_api.dependencies import PagingDep, ServiceDep
from operator_api.security import Access, access
from services.contract.common import TaskId
from services.domain.tasks import TaskState
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.storage.searches import TaskOrder

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
        states=[("", "any"), *((one.value, one.value) for one in TaskState)],
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


def _back(request: Request, form: FormDep) -> Response:
    """To the page that the form was on."""
    return RedirectResponse(local_path(form.get("next", ""), request.app.state.dashboard.root), 303)
