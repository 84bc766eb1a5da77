"""Events as the text of ``text/event-stream``: those that are read together are sent together.

FastAPI's own way, an object for each event, passes each through two queues and a timer.
"""

from collections.abc import AsyncIterator, Mapping

from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from operator_api.event_hub import EventHub
from services.contract.events import EventResponse
from services.storage.events import Event


class EventStream(StreamingResponse):
    """An answer that goes on for as long as somebody listens."""

    media_type = "text/event-stream"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Nginx would keep events back until there are many."""
        super().init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})


async def follow_as_text(
    hub: EventHub, after: int | None, task_id: str | None, round_id: str | None, *, named: bool
) -> AsyncIterator[bytes]:
    """What the hub tells after a number, of one task or round if given; pings while there is nothing.

    Without a number it begins with where it stands. ``named``: each event has its kind as its name.
    """
    if after is None:
        after = await hub.newest()
        yield format_sse_event(id=str(after))
    async for events in hub.follow(after):
        told = [
            _text(event, named=named)
            for event in events
            if task_id in (None, event.task_id) and round_id in (None, event.round_id)
        ]
        if told or not events:
            yield b"".join(told) or KEEPALIVE_COMMENT


def _text(event: Event, *, named: bool) -> bytes:
    shown = EventResponse.model_validate(event).model_dump_json()
    return format_sse_event(data_str=shown, event=event.kind if named else None, id=str(event.number))
