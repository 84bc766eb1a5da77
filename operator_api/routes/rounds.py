"""``/rounds``: opening and closing them, and looking at them."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import (
    PAGED,
    IdempotentRequestDep,
    PagingDep,
    PrincipalDep,
    ServiceDep,
    answer_page,
)
from operator_api.openapi import (
    GUARDED,
    JSON_BODY,
    Responses,
    links,
    problems,
    together,
)
from operator_api.round_view import (
    channel_response,
    draw_schedule,
    read_schedule,
    round_response,
    round_summary,
    schedule_csv,
)
from operator_api.security import Access, AuthenticatedRoute, access, created_at
from services.contract.assignments import DeclineRequest, ReadyRequest, ReadyResponse
from services.contract.common import RoundId, TaskId
from services.contract.rounds import RoundRequest, RoundResponse, RoundSummary, ScheduleResponse
from services.domain.rounds import RoundState
from services.errors import (
    DeadlinePassedError,
    ElapsedTimeError,
    EvaluationPendingError,
    IdempotencyKeyReusedError,
    ModelNotReadyError,
    NotOnReadyError,
    NotScheduledError,
    NotSelectedError,
    ResourceBlocksBusyError,
    RoundNotCollectingError,
    RoundNotFoundError,
    RoundOpenError,
    ServiceBusyError,
    TaskNotFoundError,
    TaskOverError,
    TimeNotMonotonicError,
)
from services.protocol import aggregation, resource_request
from services.protocol.block_allocation import wait_for_blocks
from services.protocol.ready import mark_ready
from services.protocol.upload import decline_slot

router = APIRouter(route_class=AuthenticatedRoute)

RoundPath = Annotated[RoundId, Path(description="The id of a round.")]

_ROUND_ID = "$response.body#/round_id"
_THIS_ROUND = {"round_id": _ROUND_ID}
_FIRST_CLIENT = "$response.body#/schedule/slots/0/client_id"
_NEXT_STEPS = (
    ("GET /rounds/{round_id}/schedule", _THIS_ROUND),
    ("GET /rounds/{round_id}/model", _THIS_ROUND),
    ("PUT /rounds/{round_id}/updates/{client_id}", _THIS_ROUND | {"client_id": _FIRST_CLIENT}),
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
    tags=["rounds"],
    summary="Open a round",
    status_code=201,
    response_model=RoundResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/rounds/{round_id}"),
    responses=together(
        problems(
            *GUARDED,
            *JSON_BODY,
            TaskNotFoundError,
            TaskOverError,
            ModelNotReadyError,
            RoundOpenError,
            EvaluationPendingError,
            ResourceBlocksBusyError,
            IdempotencyKeyReusedError,
        ),
        links(201, ("GET /rounds/{round_id}", _THIS_ROUND), *_NEXT_STEPS),
    ),
)
def open_round(
    body: RoundRequest, service: ServiceDep, idempotent: IdempotentRequestDep, principal: PrincipalDep
) -> Response:
    """Draw clients, take those with a fresh report, select, schedule.

    With a report window the round is `requesting` at first; clients are selected when the window ends.
    A round with too few clients has the state `failed`, and says so in `outcome`.

    On the wall clock the round holds resource blocks in all its cells until it closes. If too few are free,
    or a task that waits for them comes first: `RESOURCE_BLOCKS_BUSY`. Ask again after `Retry-After`: the task
    keeps its place among those that wait for twice as long.
    """
    try:
        return idempotent.answer(
            201,
            lambda uow, now: round_response(
                uow, resource_request.open_round(uow, body.task_id, now), principal
            ),
        )
    except ResourceBlocksBusyError as error:
        with service.database.unit_of_work() as uow:
            wait_for_blocks(uow, body.task_id, error, service.database.now())
            uow.commit()
        raise


@router.get(
    "/rounds",
    tags=["rounds"],
    summary="List rounds",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=PAGED | problems(*GUARDED),
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
    tags=["rounds"],
    summary="Show a round",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=together(
        problems(*GUARDED, NotSelectedError, RoundNotFoundError),
        links(200, *_NEXT_STEPS),
    ),
)
def get_round(round_id: RoundPath, service: ServiceDep, principal: PrincipalDep) -> RoundResponse:
    """A round with its slots, and for every other candidate why it has none."""
    with service.database.reading() as store:
        return round_response(store, store.rounds.get(round_id), principal)


@router.get(
    "/rounds/{round_id}/schedule",
    tags=["rounds"],
    summary="Show a round's schedule",
    response_model=ScheduleResponse,
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=_OTHER_FORMS
    | problems(
        *GUARDED,
        NotSelectedError,
        RoundNotFoundError,
        NotScheduledError,
        ServiceBusyError,
    ),
)
async def get_schedule(
    round_id: RoundPath,
    service: ServiceDep,
    principal: PrincipalDep,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Who uploads when: as JSON, or as `Accept` asks, `text/csv` or `image/svg+xml` (a Gantt chart)."""
    if "text/csv" not in accept and "image/svg+xml" in accept and "application/json" not in accept:
        schedule = await run_in_threadpool(read_schedule, service.database, round_id, principal)
        return Response(await service.compute.run(draw_schedule, schedule), media_type="image/svg+xml")

    def read_as_text() -> Response:
        schedule = read_schedule(service.database, round_id, principal)
        if "text/csv" in accept:
            return Response(schedule_csv(schedule), media_type="text/csv")
        return Response(schedule.model_dump_json(), media_type="application/json")

    return await run_in_threadpool(read_as_text)


@router.post(
    "/rounds/{round_id}/close",
    tags=["rounds"],
    summary="Close a round",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, RoundNotFoundError, RoundNotCollectingError),
)
def close_round(round_id: RoundPath, service: ServiceDep, principal: PrincipalDep) -> RoundResponse:
    """End collection now and aggregate what arrived. To close a closed round changes nothing.

    Updates that are still being received or checked are refused (`ROUND_NOT_COLLECTING`).
    """
    with service.database.unit_of_work() as uow:
        answer = round_response(
            uow, aggregation.close_round(uow, round_id, service.database.now()), principal
        )
        uow.commit()
    return answer


@router.post(
    "/rounds/{round_id}/decline",
    tags=["devices"],
    summary="Decline a round",
    openapi_extra=access(Access.CLIENT),
    responses=problems(
        *GUARDED,
        *JSON_BODY,
        NotSelectedError,
        RoundNotFoundError,
        RoundNotCollectingError,
        DeadlinePassedError,
    ),
)
def decline_round(
    round_id: RoundPath, body: DeclineRequest, service: ServiceDep, principal: PrincipalDep
) -> RoundResponse:
    """Free the client's slot: it will not upload. Three declined rounds in a row count as one missed.

    To decline a declined round changes nothing.
    """
    client_id = principal.client_id
    assert client_id is not None, "a client's key"
    with service.database.unit_of_work() as uow:
        declined = decline_slot(uow, round_id, client_id, body.reason, service.database.now())
        answer = round_response(uow, declined, principal)
        uow.commit()
    service.monitoring.update_not_received("declined")
    return answer


@router.post(
    "/rounds/{round_id}/ready",
    tags=["devices"],
    summary="Say that the update is done",
    openapi_extra=access(Access.CLIENT),
    responses=problems(
        *GUARDED,
        *JSON_BODY,
        NotSelectedError,
        RoundNotFoundError,
        RoundNotCollectingError,
        NotOnReadyError,
        DeadlinePassedError,
        TimeNotMonotonicError,
        ElapsedTimeError,
    ),
)
def mark_update_ready(
    round_id: RoundPath, body: ReadyRequest, service: ServiceDep, principal: PrincipalDep
) -> ReadyResponse:
    """With `dispatch: on_ready`: the client's update is done and waits for the channel.

    The channel of a cell is granted to one client at a time: those that sent a throughput first, the shortest
    upload first, then the others in planned order. A client whose throughput is too low to finish is refused.
    A grant lapses if no byte has arrived 2 s after it (wall clock), or after twice the expected upload; then
    call again. To call while waiting changes nothing but the throughput.
    """
    client_id = principal.client_id
    assert client_id is not None, "a client's key"
    with service.database.unit_of_work() as uow:
        news = mark_ready(
            uow,
            round_id,
            client_id,
            service.database.now(),
            throughput_bps=body.throughput_bps,
            elapsed_s=body.elapsed_s,
        )
        uow.commit()
    return ReadyResponse(state=news.state, **channel_response(news))
