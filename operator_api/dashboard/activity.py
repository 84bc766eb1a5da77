"""``/dashboard/activity``: the event log with filters; ``/dashboard/events``: new events for open pages."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from operator_api.dashboard.page_route import DataRoute, PageRoute, SessionNeededError, admit_session
from operator_api.dashboard.rendering import chosen, render
from operator_api.dashboard.wording import EVENT_GROUPS, describe_event, event_tone
from operator_api.dependencies import ServiceDep
from operator_api.event_stream import EventStream, follow_as_text
from operator_api.security import Access, access
from services.contract.common import RoundId, TaskId
from services.storage.database import Store
from services.storage.events import Event

PER_PAGE = 50


@dataclass(frozen=True)
class EventRow:
    """An event as pages show it."""

    event: Event
    text: str
    tone: str
    task_name: str
    """Of its task; empty if it has none."""

    @property
    def group(self) -> str:
        """What it is about."""
        return self.event.kind.partition(".")[0].removesuffix("s")


def load_events(
    store: Store, most: int, *, group: str = "", about: str = "", before: int | None = None
) -> tuple[list[EventRow], int | None]:
    """The newest events, and where to go on."""
    found, following = store.searches.events(group, about, before, most)
    names = store.searches.task_names({event.task_id for event in found if event.task_id})
    keys = store.searches.key_names({event.data["key_id"] for event in found if "key_id" in event.data})
    rows = [
        EventRow(
            event, describe_event(event, keys), event_tone(event.kind), names.get(event.task_id or "", "")
        )
        for event in found
    ]
    return rows, following


router = APIRouter(route_class=PageRoute, include_in_schema=False)
live_events = APIRouter(route_class=DataRoute, include_in_schema=False)


@router.get("/dashboard/activity", openapi_extra=access(Access.READ))
def show_activity(
    request: Request,
    service: ServiceDep,
    group: Annotated[str, Query(max_length=32)] = "",
    about: Annotated[str, Query(max_length=128)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """The events that are wanted; the newest page follows what happens."""
    about = about.strip()
    with service.database.reading() as store:
        rows, following = load_events(store, PER_PAGE, group=group, about=about, before=before)
    return render(
        request,
        "activity.html",
        rows=rows,
        following=following,
        before=before,
        group=group,
        groups=[("", "all"), *EVENT_GROUPS.items()],
        about=about,
        query=chosen(group=group, about=about),
    )


_Number = Annotated[int, Field(ge=0, le=2**63 - 1)]


@live_events.get("/dashboard/events", response_class=EventStream, openapi_extra=access(Access.READ))
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
