"""One look at the database for all who wait in this process: event streams and long polls.

The newest events are kept at hand. Streams read from there; who resumes from further back reads from the
database. Nobody who waits holds a thread or a connection.
"""

import asyncio
import contextlib
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import structlog
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from services.domain.rounds import RoundState
from services.storage.database import Database
from services.storage.events import Event

_POLL_S = 0.25
_FOLLOWED_POLL_S = 0.02
"""While somebody waits for events: workers commit theirs in other processes."""
_BREATH_S = 0.01
"""Between two looks, so that many commits at once are read together."""
_QUIET_S = 15.0
"""So often those who follow are told that nothing happens: proxies take silence for the end."""
_PAGE = 500
_AT_HAND = _PAGE
"""Who follows is never further behind than a moment."""
_ASKING = {f"round.{state.value}" for state in (RoundState.REQUESTING, RoundState.SCHEDULED)}
"""Only then is there something new for clients to do."""

_log = structlog.get_logger(__name__)


class EventHub:
    """Tells those who wait what has happened."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._recent: deque[Event] = deque(maxlen=_AT_HAND)
        self._last = 0
        self._news = asyncio.Event()
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._poke = asyncio.Event()
        self._followers = 0
        self._closed = False
        self._listeners: list[tuple[Collection[str], Callable[[], None]]] = []
        self.looked_at = -math.inf
        """When, by the monotonic clock, there was nothing in the database that is not known here."""

    def when_any(self, kinds: Collection[str], listener: Callable[[], None]) -> None:
        """Have this called whenever events of these kinds have come, from whichever process."""
        self._listeners.append((kinds, listener))

    async def start(self) -> None:
        """Take note of where things stand."""
        loop = asyncio.get_running_loop()
        self._database.when_events(lambda _: _call_soon(loop, self._poke.set))
        self._last = await run_in_threadpool(self._last_number)

    async def run(self) -> None:
        """Follow the database until closed; commits of this process are noticed at once."""
        while not self._closed:
            try:
                while await self._take_new():
                    pass
            except SQLAlchemyError:
                _log.exception("events cannot be read")
                await asyncio.sleep(1)
            await asyncio.sleep(_BREATH_S)
            await self.wait(self._poke, _FOLLOWED_POLL_S if self._followers else _POLL_S)
            self._poke.clear()

    def close(self) -> None:
        """Let all who wait go: the process ends."""
        self._closed = True
        self._tell_followers()
        self._tell_clients(list(self._waiting))

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
                await self.wait(news, _QUIET_S)
                if not news.is_set():
                    yield []
        finally:
            self._followers -= 1

    @property
    def is_closed(self) -> bool:
        """Whether the process ends."""
        return self._closed

    @contextmanager
    def waiting(self, client_id: str) -> Iterator[asyncio.Event]:
        """What will be set when a round begins to ask something of this client after now."""
        change = asyncio.Event()
        self._waiting[client_id].add(change)
        try:
            yield change
        finally:
            self._waiting[client_id].discard(change)
            if not self._waiting[client_id]:
                del self._waiting[client_id]

    async def wait(self, change: asyncio.Event, timeout_s: float) -> None:
        """Wait for a change, or for so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(change.wait(), timeout_s)

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
            self._tell_listeners({event.kind for event in new})
            self._tell_followers()
            asking = {event.round_id for event in new if event.kind in _ASKING and event.round_id}
            if asking and self._waiting:
                self._tell_clients(await run_in_threadpool(self._asked_by, asking))
        if len(new) == _PAGE:
            return True
        self.looked_at = began
        return False

    def _tell_listeners(self, kinds: set[str]) -> None:
        for wanted, listener in self._listeners:
            if not kinds.isdisjoint(wanted):
                listener()

    def _tell_followers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _tell_clients(self, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            for change in self._waiting.get(client_id, ()):
                change.set()

    def _asked_by(self, round_ids: Iterable[str]) -> list[str]:
        with self._database.reading() as store:
            return [one for round_id in round_ids for one in store.rounds.wanted_clients(round_id)]

    def _last_number(self) -> int:
        with self._database.reading() as store:
            return store.events.last_number()

    def _read_after(self, number: int) -> list[Event]:
        with self._database.reading() as store:
            return list(store.events.after(number, _PAGE))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
