"""``GET /events``: every change of state, as it happens."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import ServiceDep
from operator_api.event_stream import EventStream, follow_as_text
from operator_api.openapi import GUARDED, Responses, problems
from operator_api.security import Access, AuthenticatedRoute, access
from services.contract.common import EventResponse, RoundId, TaskId

router = APIRouter(tags=["events"], route_class=AuthenticatedRoute)

_EXAMPLE = EventResponse.model_validate(EventResponse.model_json_schema()["examples"][0])
_EXAMPLE_TEXT = f"event: {_EXAMPLE.kind}\ndata: {_EXAMPLE.model_dump_json()}\nid: {_EXAMPLE.number}\n\n"
_STREAM: Responses = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE_TEXT}}}
}


@router.get(
    "/events",
    summary="Follow what happens",
    response_class=EventStream,
    openapi_extra=access(Access.READ),
    responses=_STREAM | problems(*GUARDED),
)
async def follow_events(
    request: Request,
    service: ServiceDep,
    task_id: Annotated[TaskId | SkipJsonSchema[None], Query(description="Only events of this task.")] = None,
    round_id: Annotated[
        RoundId | SkipJsonSchema[None], Query(description="Only events of this round.")
    ] = None,
    last_event_id: Annotated[
        Annotated[int, Field(ge=0, le=2**63 - 1)] | SkipJsonSchema[None],
        Header(description="Resume after this event; 0 for all that are kept."),
    ] = None,
) -> EventStream:
    """Server-sent events; the `id` of each is the number to resume after.

    A new stream begins with an `id` alone: where it stands, to be resumed even if it breaks before an event.
    A stream ends with its key: at once when the key is revoked, within 15 seconds when its token expires.
    """
    is_admitted = partial(service.authenticator.is_still_admitted, request)
    return EventStream(follow_as_text(service.hub, is_admitted, last_event_id, task_id, round_id, named=True))
