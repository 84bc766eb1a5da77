"""Events for all waiting requests of this process: one database poll, server-sent events, long polls."""

import asyncio
import contextlib
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice

import structlog
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from sqlalchemy.exc import SQLAlchemyError

from services.contract.common import EventResponse
from services.domain.rounds import RoundState
from services.storage.database import Database
from services.storage.events import Event

_POLL_S = 0.25
_FOLLOWED_POLL_S = 0.02
"""While somebody waits for events: workers commit theirs in other processes."""
_MIN_PAUSE_S = 0.01
"""Between two looks, so that many commits at once are read together."""
_KEEPALIVE_S = 15.0
"""The interval of keep-alive comments: proxies close silent connections."""
_PAGE = 500
_AT_HAND = _PAGE
"""Streams are rarely further behind; older events are read from the database."""
_REQUESTING_EVENTS = {f"round.{state.value}" for state in (RoundState.REQUESTING, RoundState.SCHEDULED)}
"""Only then is there something new for clients to do."""
_WITHDRAWING_EVENTS = {f"round.{state.value}" for state in RoundState} - {
    "round.requesting",
    "round.collecting",
}
"""Then a round no longer asks for what it asked for before."""

_log = structlog.get_logger(__name__)


class WaitingClient:
    """A client that waits for its assignments to change."""

    def __init__(self) -> None:
        self.change = asyncio.Event()
        self.round_ids: Collection[str] | None = None
        """Those that ask something of it; none while that is being read."""

    def begin(self) -> None:
        """Heed all changes from now on: the assignments are about to be read."""
        self.change.clear()
        self.round_ids = None

    async def for_change(self, round_ids: Collection[str], timeout_s: float) -> None:
        """Wait for a change, now that it is known which rounds ask something; or for so long."""
        self.round_ids = round_ids
        await _wait(self.change, timeout_s)


class EventHub:
    """Delivers events to streams, long polls and listeners of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._recent: deque[Event] = deque(maxlen=_AT_HAND)
        self._last = 0
        self._news = asyncio.Event()
        self._waiting: defaultdict[str, set[WaitingClient]] = defaultdict(set)
        self._poke = asyncio.Event()
        self._followers = 0
        self._closed = False
        self._listeners: list[tuple[Collection[str], Callable[[list[Event]], None]]] = []
        self.looked_at = -math.inf
        """When, by the monotonic clock, there was nothing in the database that is not known here."""

    def when_any(self, kinds: Collection[str], listener: Callable[[list[Event]], None]) -> None:
        """Call this with the events of these kinds whenever some have come, from whichever process."""
        self._listeners.append((kinds, listener))

    async def start(self) -> None:
        """Read the number of the newest event."""
        loop = asyncio.get_running_loop()
        self._database.add_event_listener(lambda _: _call_soon(loop, self._poke.set))
        self._last = await run_in_threadpool(self._last_number)

    async def run(self) -> None:
        """Follow the database until closed; commits of this process are noticed at once."""
        while not self._closed:
            try:
                while await self._take_new():
                    pass
            except SQLAlchemyError:
                _log.exception("reading events failed")
                await asyncio.sleep(1)
            await asyncio.sleep(_MIN_PAUSE_S)
            await _wait(self._poke, _FOLLOWED_POLL_S if self._followers else _POLL_S)
            self._poke.clear()

    def close(self) -> None:
        """Wake all waiting requests: the process is stopping."""
        self._closed = True
        self._wake_followers()
        self._wake_clients(list(self._waiting))

    async def newest(self) -> int:
        """The number of the newest event in the database."""
        return await run_in_threadpool(self._last_number)

    async def follow(self, after: int) -> AsyncIterator[list[Event]]:
        """The events after a number and then those to come, some at a time; none while it is quiet."""
        position = await self._resume(after)
        self._followers += 1
        try:
            while not self._closed:
                news = self._news
                found = await self._after(position)
                if found:
                    position = found[-1].number
                    yield found
                    continue
                await _wait(news, _KEEPALIVE_S)
                if not news.is_set():
                    yield []
        finally:
            self._followers -= 1

    @property
    def is_closed(self) -> bool:
        """Whether the process ends."""
        return self._closed

    @contextmanager
    def waiting(self, client_id: str) -> Iterator[WaitingClient]:
        """Wakes a client when a round starts or stops requesting something of it, or its key is revoked."""
        waiting = WaitingClient()
        self._waiting[client_id].add(waiting)
        try:
            yield waiting
        finally:
            self._waiting[client_id].discard(waiting)
            if not self._waiting[client_id]:
                del self._waiting[client_id]

    async def _resume(self, after: int) -> int:
        """Where to go on; from the beginning after what has not happened: an older database was restored."""
        if after > self._last and after > await self.newest():
            return 0
        return after

    async def _after(self, position: int) -> list[Event]:
        if position >= self._last:
            return []
        first = self._recent[0].number if self._recent else self._last + 1
        if position + 1 < first:
            return await run_in_threadpool(self._read_after, position)
        skip = position + 1 - first
        return list(islice(self._recent, skip, skip + _PAGE))

    async def _take_new(self) -> bool:
        """Read what is new; whether there may be more."""
        began = time.monotonic()
        new = await run_in_threadpool(self._read_after, self._last)
        if new:
            self._recent.extend(new)
            self._last = new[-1].number
            self._tell_listeners(new)
            self._wake_followers()
            if self._waiting:
                await self._tell_concerned(new)
        if len(new) == _PAGE:
            return True
        self.looked_at = began
        return False

    def _tell_listeners(self, new: list[Event]) -> None:
        for kinds, listener in self._listeners:
            if wanted := [event for event in new if event.kind in kinds]:
                listener(wanted)

    def _wake_followers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _tell_concerned(self, new: list[Event]) -> None:
        self._wake_clients({event.client_id for event in new if event.client_id is not None})
        withdrawing = {event.round_id for event in new if event.kind in _WITHDRAWING_EVENTS}
        if withdrawing:
            for waiting in chain.from_iterable(self._waiting.values()):
                if waiting.round_ids is None or not withdrawing.isdisjoint(waiting.round_ids):
                    waiting.change.set()
        asking = {event.round_id for event in new if event.kind in _REQUESTING_EVENTS and event.round_id}
        if asking:
            self._wake_clients(await run_in_threadpool(self._asked_by, asking))

    def _wake_clients(self, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            for waiting in self._waiting.get(client_id, ()):
                waiting.change.set()

    def _asked_by(self, round_ids: Iterable[str]) -> list[str]:
        with self._database.reading() as store:
            return [
                client_id for round_id in round_ids for client_id in store.rounds.clients_to_notify(round_id)
            ]

    def _last_number(self) -> int:
        with self._database.reading() as store:
            return store.events.last_number()

    def _read_after(self, number: int) -> list[Event]:
        with self._database.reading() as store:
            return list(store.events.after(number, _PAGE))


async def _wait(change: asyncio.Event, timeout_s: float) -> None:
    """Wait for a change or the time-out."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(change.wait(), timeout_s)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


class EventStream(StreamingResponse):
    """A response with server-sent events."""

    media_type = "text/event-stream"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Disable caching, and buffering in nginx."""
        super().init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})


async def follow_as_text(
    hub: EventHub,
    is_admitted: Callable[[], Awaitable[bool]],
    after: int | None,
    task_id: str | None,
    round_id: str | None,
    *,
    named: bool,
) -> AsyncIterator[bytes]:
    """What the hub tells after a number, of one task or round if given; pings while there is nothing.

    Without a number it begins with where it stands. ``named``: each event has its kind as its name. It ends
    when the listener ``is_admitted`` no more: that is asked before anything is sent, and after every event,
    also those of keys that other processes revoke.
    """
    if after is None:
        after = await hub.newest()
        yield format_sse_event(id=str(after))
    async for events in hub.follow(after):
        if not await is_admitted():
            return
        lines = [
            _text(event, named=named)
            for event in events
            if task_id in (None, event.task_id) and round_id in (None, event.round_id)
        ]
        if lines or not events:
            yield b"".join(lines) or KEEPALIVE_COMMENT


def _text(event: Event, *, named: bool) -> bytes:
    shown = EventResponse.model_validate(event).model_dump_json()
    return format_sse_event(data_str=shown, event=event.kind if named else None, id=str(event.number))
