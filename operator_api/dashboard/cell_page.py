"""``GET /dashboard/cell``: where the clients are, what they can do, and how often each was selected."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from operator_api.dashboard.cell_view import load_cell
from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import render, send_json
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from services.contract.fields import TaskId

router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_MOST_TASKS = 50


@router.get("/dashboard/cell", openapi_extra=access(Access.READ))
def show_cell(
    request: Request, service: ServiceDep, task_id: Annotated[TaskId | None, Query()] = None
) -> Response:
    """The frame of the page; its script fills it."""
    with service.database.reading() as store:
        tasks = store.selections.tasks(_MOST_TASKS)
        if task_id is not None:
            chosen = store.tasks.get(task_id)
            tasks = [*tasks, *([(task_id, chosen.terms.name)] if task_id not in dict(tasks) else [])]
    return render(
        request,
        "cell.html",
        plots=True,
        tasks=tasks,
        task_id=task_id,
    )


@data.get("/dashboard/data/cell", openapi_extra=access(Access.READ))
def send_cell(service: ServiceDep, task_id: Annotated[TaskId | None, Query()] = None) -> Response:
    """What the page draws, in columns."""
    return send_json(load_cell(service.database, task_id))
