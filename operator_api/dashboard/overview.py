"""``GET /``: all tasks and how the service is; here tasks are started and cancelled, and rounds opened."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse

from operator_api.dashboard.login import local_path
from operator_api.dashboard.overview_view import OverviewPage, load_overview
from operator_api.dashboard.page_route import DataRoute, FormDep, PageRoute
from operator_api.dashboard.rendering import render
from operator_api.dashboard.task_form import TaskForm, read_task
from operator_api.dependencies import PagingDep, ServiceDep
from operator_api.security import Access, access
from operator_api.service import Service
from services.contract.fields import TaskId
from services.domain.selection import POLICIES
from services.protocol.initialization import cancel_task, start_task
from services.protocol.resource_request import open_round
from services.storage.rows import Paging

router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_FIRST_PAGE = Paging(1, 20)


@router.get("/", openapi_extra=access(Access.READ))
def show_overview(request: Request, service: ServiceDep, paging: PagingDep) -> Response:
    """The tasks, newest first, and how the service is."""
    return _page(request, service, paging, TaskForm())


@data.get("/dashboard/data/overview", openapi_extra=access(Access.READ))
def refresh_overview(request: Request, service: ServiceDep, paging: PagingDep) -> Response:
    """The parts of the overview that change, as the page has them."""
    return render(request, "overview_parts.html", overview=_load(request, service, paging))


@router.post("/dashboard/tasks", openapi_extra=access(Access.MANAGE))
def create_task(request: Request, form: FormDep, service: ServiceDep) -> Response:
    """Start a task, or show the form again with what is wrong."""
    asked = read_task(form)
    if isinstance(asked, TaskForm):
        return _page(request, service, _FIRST_PAGE, asked, status=422)
    with service.database.unit_of_work() as uow:
        task = start_task(uow, asked.terms(), service.database.now())
        uow.commit()
    return _back_to(request, task.task_id, _FIRST_PAGE)


@router.post("/dashboard/tasks/{task_id}/rounds", openapi_extra=access(Access.MANAGE))
def open_next_round(
    request: Request,
    task_id: Annotated[TaskId, Path()],
    service: ServiceDep,
    paging: PagingDep,
    form: FormDep,
) -> Response:
    """Open a round of a task."""
    with service.database.unit_of_work() as uow:
        open_round(uow, task_id, service.database.now())
        uow.commit()
    return _back_to(request, task_id, paging, form.get("next", ""))


@router.post("/dashboard/tasks/{task_id}/cancel", openapi_extra=access(Access.MANAGE))
def cancel(
    request: Request,
    task_id: Annotated[TaskId, Path()],
    service: ServiceDep,
    paging: PagingDep,
    form: FormDep,
) -> Response:
    """Cancel a task and its open round."""
    with service.database.unit_of_work() as uow:
        cancel_task(uow, task_id, service.database.now())
        uow.commit()
    return _back_to(request, task_id, paging, form.get("next", ""))


def _page(
    request: Request, service: Service, paging: Paging, form: TaskForm, *, status: int = 200
) -> Response:
    shown = _load(request, service, paging)
    return render(request, "overview.html", status=status, overview=shown, form=form, policies=list(POLICIES))


def _load(request: Request, service: Service, paging: Paging) -> OverviewPage:
    return load_overview(service.database, request.app.state.dashboard.vitals.now(), paging)


def _back_to(request: Request, task_id: str, paging: Paging, next_path: str = "") -> Response:
    """The page that the form was on, if it says so; else the overview, at the row of the task."""
    dashboard = request.app.state.dashboard
    if next_path:
        return RedirectResponse(local_path(next_path, dashboard.root), 303)
    query = {} if paging.page == 1 else {"page": paging.page}
    return RedirectResponse(f"{dashboard.templates.url('/', **query)}#{task_id}", 303)
