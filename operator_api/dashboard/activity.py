"""``/dashboard/activity``: the event log, newest first, with filters."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from operator_api.dashboard.page_route import PageRoute
from operator_api.dashboard.rendering import chosen, render
from operator_api.dashboard.wording import EVENT_GROUPS, describe_event, event_tone
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
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
    rows = [
        EventRow(event, describe_event(event), event_tone(event.kind), names.get(event.task_id or "", ""))
        for event in found
    ]
    return rows, following


router = APIRouter(route_class=PageRoute, include_in_schema=False)


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
