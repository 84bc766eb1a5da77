"""``GET /dashboard/rounds/{round_id}``: a round as planned and as it goes; here it is closed."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import render, send_json, to_be_saved
from operator_api.dashboard.round_chart import load_chart
from operator_api.dashboard.round_page_view import Shown, load_round
from operator_api.dashboard.round_rows import COLUMNS
from operator_api.dependencies import PrincipalDep, ServiceDep
from operator_api.round_view import schedule_csv, schedule_response
from operator_api.security import Access, access
from operator_api.service import Service
from services.access import Principal
from services.contract.fields import RoundId
from services.contract.rounds import ScheduleResponse
from services.errors import NotScheduledError
from services.protocol.aggregation import close_round

router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_RoundPath = Annotated[RoundId, Path()]
_ShownQuery = Annotated[Shown, Query(alias="outcome")]
_PageQuery = Annotated[int, Query(ge=1, le=1_000_000)]


@router.get("/dashboard/rounds/{round_id}", openapi_extra=access(Access.READ))
def show_round(
    request: Request,
    round_id: _RoundPath,
    service: ServiceDep,
    shown: _ShownQuery = None,
    page: _PageQuery = 1,
) -> Response:
    """A round: how far it is, its chart, and for each client that was asked what became of it."""
    found = load_round(service.database, round_id, shown, page)
    return render(request, "round.html", plots=True, view=found, columns=COLUMNS)


@data.get("/dashboard/data/rounds/{round_id}/parts", openapi_extra=access(Access.READ))
def refresh_round(
    request: Request,
    round_id: _RoundPath,
    service: ServiceDep,
    shown: _ShownQuery = None,
    page: _PageQuery = 1,
) -> Response:
    """The parts of the page that change, as the page has them."""
    found = load_round(service.database, round_id, shown, page)
    return render(request, "round_parts.html", view=found, columns=COLUMNS)


@data.get("/dashboard/data/rounds/{round_id}", openapi_extra=access(Access.READ))
def send_chart(round_id: _RoundPath, service: ServiceDep) -> Response:
    """What the chart is drawn from."""
    return send_json(load_chart(service.database, round_id))


@router.get("/dashboard/rounds/{round_id}/schedule.csv", openapi_extra=access(Access.READ))
def send_csv(round_id: _RoundPath, service: ServiceDep, principal: PrincipalDep) -> Response:
    """The schedule as a table, to be kept."""
    text = schedule_csv(_schedule(service, round_id, principal))
    return _file(text.encode(), "text/csv", f"{round_id}.csv")


@router.get("/dashboard/rounds/{round_id}/schedule.svg", openapi_extra=access(Access.READ))
def send_svg(round_id: _RoundPath, service: ServiceDep, principal: PrincipalDep) -> Response:
    """The schedule as a picture, to be kept."""
    from services.charts.gantt import draw_gantt  # noqa: PLC0415 - loads slowly, and is seldom asked for

    schedule = _schedule(service, round_id, principal)
    return _file(draw_gantt(schedule, schedule, "svg"), "image/svg+xml", f"{round_id}.svg")


@router.post("/dashboard/rounds/{round_id}/close", openapi_extra=access(Access.MANAGE))
def close(request: Request, round_id: _RoundPath, service: ServiceDep) -> Response:
    """End collection now, and go back to the round."""
    with service.database.unit_of_work() as uow:
        close_round(uow, round_id, service.database.now())
        uow.commit()
    return RedirectResponse(request.app.state.dashboard.templates.url(f"/dashboard/rounds/{round_id}"), 303)


def _schedule(service: Service, round_id: str, principal: Principal) -> ScheduleResponse:
    with service.database.reading() as store:
        schedule = schedule_response(store, store.rounds.get(round_id), principal)
    if schedule is None:
        raise NotScheduledError("The round has no schedule: no clients have been selected yet.")
    return schedule


def _file(content: bytes, media_type: str, name: str) -> Response:
    """Something to save: a picture opened in the page's place would need a policy of its own."""
    return Response(content, media_type=media_type, headers=to_be_saved(name))
