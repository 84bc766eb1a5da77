"""``GET /events``: every change of state, as it happens."""

from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import ServiceDep
from operator_api.openapi import GUARDED, INVALID_REQUEST, Responses, problems
from operator_api.security import Access, GuardedRoute, access
from operator_api.service import Service
from services.contract.events import EventResponse
from services.contract.fields import RoundId, TaskId

router = APIRouter(tags=["events"], route_class=GuardedRoute)

_EXAMPLE = EventResponse.model_validate(EventResponse.model_json_schema()["examples"][0])
_EXAMPLE_TEXT = f"event: {_EXAMPLE.kind}\ndata: {_EXAMPLE.model_dump_json()}\nid: {_EXAMPLE.number}\n\n"
_STREAM: Responses = {200: {"content": {"text/event-stream": {"example": _EXAMPLE_TEXT}}}}


@router.get(
    "/events",
    summary="Follow what happens",
    response_class=EventSourceResponse,
    openapi_extra=access(Access.READ),
    responses=_STREAM | problems(*GUARDED, INVALID_REQUEST),
)
async def follow_events(
    service: ServiceDep,
    task_id: Annotated[TaskId | SkipJsonSchema[None], Query(description="Only events of this task.")] = None,
    round_id: Annotated[
        RoundId | SkipJsonSchema[None], Query(description="Only events of this round.")
    ] = None,
    last_event_id: Annotated[
        Annotated[int, Field(ge=0, le=2**63 - 1)] | SkipJsonSchema[None],
        Header(description="Resume after this event; 0 for all that are kept."),
    ] = None,
) -> AsyncIterable[ServerSentEvent]:
    """Server-sent events; the `id` of each is the number to resume after.

    A new stream begins with an `id` alone: where it stands, to be resumed even if it breaks before an event.
    """
    if last_event_id is None:
        last_event_id = await run_in_threadpool(_last_number, service)
        yield ServerSentEvent(id=str(last_event_id))
    async for event in service.hub.follow(last_event_id):
        if task_id in (None, event.task_id) and round_id in (None, event.round_id):
            shown = EventResponse.model_validate(event)
            yield ServerSentEvent(raw_data=shown.model_dump_json(), event=event.kind, id=str(event.number))


def _last_number(service: Service) -> int:
    with service.database.reading() as store:
        return store.events.last_number()
