"""``/rounds``: opening and closing them, and looking at them."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import OnceDep, PagingDep, PrincipalDep, ServiceDep
from operator_api.openapi import (
    GUARDED,
    INVALID_REQUEST,
    JSON_BODY,
    Responses,
    links,
    problems,
    together,
)
from operator_api.paging import PAGED, answer_page
from operator_api.round_view import round_response, round_summary, schedule_csv, schedule_response
from operator_api.security import Access, GuardedRoute, access
from services.contract.fields import RoundId, TaskId
from services.contract.rounds import RoundRequest, RoundResponse, RoundSummary, ScheduleResponse
from services.domain.rounds import RoundState
from services.errors import (
    EvaluationPendingError,
    IdempotencyKeyReusedError,
    ModelNotReadyError,
    NotScheduledError,
    NotSelectedError,
    RoundNotCollectingError,
    RoundNotFoundError,
    RoundOpenError,
    TaskNotFoundError,
    TaskOverError,
)
from services.protocol.aggregation import close_round
from services.protocol.resource_request import open_round

router = APIRouter(tags=["rounds"], route_class=GuardedRoute)

RoundPath = Annotated[RoundId, Path()]

_ROUND_ID = "$response.body#/round_id"
_THIS_ROUND = {"round_id": _ROUND_ID}
_FIRST_CLIENT = "$response.body#/schedule/slots/0/client_id"
_NEXT_STEPS = (
    ("GET /rounds/{round_id}/schedule", _THIS_ROUND),
    ("GET /rounds/{round_id}/model", _THIS_ROUND),
    ("PUT /rounds/{round_id}/updates/{client_id}", _THIS_ROUND | {"client_id": _FIRST_CLIENT}),
    ("POST /trainings", {"body.round_id": _ROUND_ID, "body.client_id": _FIRST_CLIENT}),
    ("POST /rounds/{round_id}/close", _THIS_ROUND),
)

_OTHER_FORMS: Responses = {
    200: {
        "content": {
            "text/csv": {
                "schema": {"type": "string"},
                "example": "selected,client_id,order,update_s\r\n1,c1,1,20.0\r\n",
            },
            "image/svg+xml": {"schema": {"type": "string"}, "example": "<svg/>"},
        }
    }
}


@router.post(
    "/rounds",
    summary="Open a round",
    status_code=201,
    response_model=RoundResponse,
    openapi_extra=access(Access.MANAGE),
    responses=together(
        problems(
            *GUARDED,
            *JSON_BODY,
            TaskNotFoundError,
            TaskOverError,
            ModelNotReadyError,
            RoundOpenError,
            EvaluationPendingError,
            IdempotencyKeyReusedError,
        ),
        links(201, ("GET /rounds/{round_id}", _THIS_ROUND), *_NEXT_STEPS),
    ),
)
def create_round(body: RoundRequest, once: OnceDep, principal: PrincipalDep) -> Response:
    """Draw clients, take those with a fresh report, select, schedule.

    With a report window the round is `requesting` at first; clients are selected when the window ends.
    A round with too few clients has the state `failed`, and says so in `outcome`.
    """
    return once.answer(
        201, lambda uow, now: round_response(uow, open_round(uow, body.task_id, now), principal)
    )


@router.get(
    "/rounds",
    summary="List rounds",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=PAGED | problems(*GUARDED, INVALID_REQUEST),
)
def list_rounds(
    request: Request,
    response: Response,
    service: ServiceDep,
    principal: PrincipalDep,
    paging: PagingDep,
    task_id: Annotated[TaskId | SkipJsonSchema[None], Query(description="Only those of this task.")] = None,
    state: Annotated[
        RoundState | SkipJsonSchema[None], Query(description="Only those in this state.")
    ] = None,
) -> Sequence[RoundSummary]:
    """Rounds, newest first; a client sees those it was selected for."""
    with service.database.reading() as store:
        found = store.rounds.page(paging, task_id=task_id, state=state, client_id=principal.client_id)
    return answer_page(request, response, paging, found, round_summary)


@router.get(
    "/rounds/{round_id}",
    summary="Show a round",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=together(
        problems(*GUARDED, INVALID_REQUEST, NotSelectedError, RoundNotFoundError),
        links(200, *_NEXT_STEPS),
    ),
)
def get_round(round_id: RoundPath, service: ServiceDep, principal: PrincipalDep) -> RoundResponse:
    """A round with its slots, and for every other candidate why it has none."""
    with service.database.reading() as store:
        return round_response(store, store.rounds.get(round_id), principal)


@router.get(
    "/rounds/{round_id}/schedule",
    summary="Show a round's schedule",
    response_model=ScheduleResponse,
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=_OTHER_FORMS
    | problems(*GUARDED, INVALID_REQUEST, NotSelectedError, RoundNotFoundError, NotScheduledError),
)
def get_schedule(
    round_id: RoundPath,
    service: ServiceDep,
    principal: PrincipalDep,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Who uploads when: as JSON, or as `Accept` asks, `text/csv` or `image/svg+xml` (a Gantt chart)."""
    with service.database.reading() as store:
        schedule = schedule_response(store, store.rounds.get(round_id), principal)
    if schedule is None:
        raise NotScheduledError("The round has no schedule: no clients have been selected yet.")
    if "text/csv" in accept:
        return Response(schedule_csv(schedule), media_type="text/csv")
    if "image/svg+xml" in accept and "application/json" not in accept:
        from services.charts.gantt import draw_gantt  # noqa: PLC0415 - loads slowly, and is seldom asked for

        return Response(draw_gantt(schedule, schedule, "svg"), media_type="image/svg+xml")
    return Response(schedule.model_dump_json(), media_type="application/json")


@router.post(
    "/rounds/{round_id}/close",
    summary="Close a round",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, INVALID_REQUEST, RoundNotFoundError, RoundNotCollectingError),
)
def close(round_id: RoundPath, service: ServiceDep, principal: PrincipalDep) -> RoundResponse:
    """End collection now and aggregate what arrived. To close a closed round changes nothing."""
    with service.database.unit_of_work() as uow:
        answer = round_response(uow, close_round(uow, round_id, service.database.now()), principal)
        uow.commit()
    return answer
