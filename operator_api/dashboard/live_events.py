"""``GET /dashboard/events``: for the pages that are open, what ``/events`` tells, for a session."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field

from operator_api.dashboard.page_route import DataRoute, SessionNeededError, admit_session
from operator_api.dependencies import ServiceDep
from operator_api.event_stream import EventStream, follow_as_text
from operator_api.security import Access, access
from services.contract.common import RoundId, TaskId

router = APIRouter(route_class=DataRoute, include_in_schema=False)

_Number = Annotated[int, Field(ge=0, le=2**63 - 1)]


@router.get("/dashboard/events", response_class=EventStream, openapi_extra=access(Access.READ))
async def follow_for_page(
    request: Request,
    service: ServiceDep,
    task_id: Annotated[TaskId | None, Query()] = None,
    round_id: Annotated[RoundId | None, Query()] = None,
    after: Annotated[_Number | None, Query()] = None,
    last_event_id: Annotated[_Number | None, Header()] = None,
) -> EventStream:
    """Server-sent events without a name: a browser gives only such to ``onmessage``.

    ``after`` is for a script that connects anew; a browser that does so by itself sends ``Last-Event-ID``.
    """
    position = after if last_event_id is None else last_event_id
    is_admitted = partial(_has_session, request)
    return EventStream(follow_as_text(service.hub, is_admitted, position, task_id, round_id, named=False))


async def _has_session(request: Request) -> bool:
    """Whether the session lasts: it may end while the stream is open."""
    try:
        await admit_session(request)
    except SessionNeededError:
        return False
    return True
