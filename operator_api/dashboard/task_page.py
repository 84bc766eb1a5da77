"""``/dashboard/tasks/{task_id}``: how a task goes, alone or beside others, and what it has made so far."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from operator_api.dashboard.comparison import MOST_OTHERS, MOST_THRESHOLDS, ComparisonDep
from operator_api.dashboard.course_files import course_csv, course_json
from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import render, to_be_saved
from operator_api.dashboard.task_view import TaskPage, load_courses, load_task_page
from operator_api.dependencies import PagingDep, ServiceDep
from operator_api.model_files import IfNoneMatch
from operator_api.routes.tasks import send_version
from operator_api.security import Access, access
from services.contract.fields import TaskId
from services.errors import ModelNotReadyError

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
def send_course(
    task_id: _TaskPath, service: ServiceDep, first: Annotated[int, Query(ge=1, le=2**31 - 1)] = 1
) -> Response:
    """The task's rounds from the ``first`` on, in columns."""
    (course,) = load_courses(service.database, [task_id])
    return Response(course_json(course, first), media_type="application/json")


@router.get("/dashboard/tasks/{task_id}/metrics.csv", openapi_extra=access(Access.READ))
def download_metrics(task_id: _TaskPath, service: ServiceDep, comparison: ComparisonDep) -> Response:
    """The rounds of the task and of those it is compared with."""
    courses = load_courses(service.database, [task_id, *comparison.others])
    return Response(course_csv(courses), media_type="text/csv", headers=to_be_saved(f"{task_id}-metrics.csv"))


@router.get("/dashboard/tasks/{task_id}/model", openapi_extra=access(Access.READ))
def download_newest_model(
    task_id: _TaskPath, service: ServiceDep, if_none_match: IfNoneMatch = None
) -> Response:
    """The newest version of the task's model, as safetensors."""
    with service.database.reading() as store:
        version = store.tasks.get(task_id).model_version
    if version is None:
        raise ModelNotReadyError("The task has no initial model yet.")
    response = send_version(service, task_id, version, if_none_match)
    response.headers.update(to_be_saved(f"{task_id}-v{version}.safetensors"))
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
        most_others=MOST_OTHERS,
        most_thresholds=MOST_THRESHOLDS,
    )
