"""Limits of connections, headers, bodies and request rates."""

import asyncio
import json
import resource
import time
from asyncio import BaseTransport, TimerHandle, Transport
from http import HTTPStatus
from typing import Any, ClassVar, cast

from limits import RateLimitItem, parse
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from operator_api.problems import problem_response
from services.errors import TooManyRequestsError

AUTHENTICATED = "fedcs.authenticated"
"""The ASGI extension by which the application reports a request whose key is valid."""
HEADERS_S = 10.0
"""From the first byte of a request, or the beginning of its connection, to the end of its headers."""
MAX_HEADER_BYTES = 64 * 1024
"""The request line and all headers together."""
_OTHER_FILES = 256
"""The database, models that come and go, the broker."""


class BoundedConnection(HttpToolsProtocol):
    """A connection with limits on the time and the size of request headers."""

    max_connections: ClassVar[int]
    unauthenticated: ClassVar[dict["BoundedConnection", None]]
    """Those in whose present request no key was found valid, in the order in which they became so."""

    _in_headers = False
    _header_bytes = 0
    """Since the last byte of a body: headers, and what may come as headers after a body in chunks."""
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Accept the connection; at the limit, close the oldest unauthenticated one."""
        if len(self.connections) >= self.max_connections:
            if not self.unauthenticated:
                self.transport = cast(Transport, transport)
                self._refuse_for_room()
                return
            next(iter(self.unauthenticated)).evict()
        super().connection_made(cast(Transport, transport))
        self.unauthenticated[self] = None
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self._stop_timer()
        self.unauthenticated.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; between two requests time and size are limited."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()
        else:
            self._stop_timer()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_headers, self._header_bytes = True, 0
        self.unauthenticated.setdefault(self)
        super().on_message_begin()
        self.scope["extensions"] = {AUTHENTICATED: {"note": self.note_authenticated}}

    def on_body(self, body: bytes) -> None:
        """A part of its body has come."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It has ended."""
        self._header_bytes = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Its headers have ended; they may have come at once, and be too large all the same."""
        size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
            raise ValueError("the headers are too large")  # for the parser to stop; uvicorn catches it
        self._in_headers = False
        super().on_headers_complete()

    def note_authenticated(self) -> None:
        """The key of its request is valid."""
        self.unauthenticated.pop(self, None)

    def evict(self) -> None:
        """Close this connection to make room for another."""
        del self.unauthenticated[self]
        self.connections.discard(self)
        if self.cycle is None or not self.cycle.response_started:
            self._refuse_for_room()
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request."""
        if not self.transport.is_closing():
            self._refuse(HTTPStatus.BAD_REQUEST, "MALFORMED_HTTP", msg)

    def _start_timer(self) -> None:
        """Start the timer for the next request; further bytes do not extend it."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self._time_out)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        if self._in_headers:
            detail = f"The headers have to arrive within {HEADERS_S:g} s."
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "REQUEST_TIMEOUT", detail)
        else:
            self.transport.close()

    def _refuse_headers(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            "HEADERS_TOO_LARGE",
            f"The request line and the headers may have {MAX_HEADER_BYTES} bytes together.",
        )

    def _refuse_for_room(self) -> None:
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS", "Come again later.")

    def _refuse(self, status: HTTPStatus, cause: str, detail: str) -> None:
        answer = problem_response(status, cause, detail, headers={"Connection": "close"})
        headers = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[status], *headers, b"\r\n", answer.body]))
        self.transport.close()


def connections_up_to(most: int) -> type[BoundedConnection]:
    """The kind of connection for a process that is to have so many at a time."""
    limits = {"max_connections": allow_connections(most), "unauthenticated": {}}
    return type("LimitedConnection", (BoundedConnection,), limits)


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files as far as needed and allowed; how many connections that leaves room for.

    Without room to spare, those who hold connections would keep others from the database and the model store.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(wanted + _OTHER_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed - _OTHER_FILES, 1)


MAX_PAUSE_S = 30.0
"""The time budget of a body: the longest pause."""
MIN_BYTES_PER_S = 1024
"""A slower body uses up the time budget."""


def with_body_limit(request: Request, max_bytes: int) -> Request:
    """The same request, refused as soon as its body is announced or turns out to be larger, or too slow."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "Send the body as it is: no Content-Encoding is taken.")
    received_bytes = 0
    budget_s = MAX_PAUSE_S

    async def receive() -> Message:
        nonlocal received_bytes, budget_s
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            async with asyncio.timeout(budget_s):
                message = await request.receive()
        except TimeoutError as error:
            raise _too_slow() from error
        size_bytes = len(message.get("body", b""))
        received_bytes += size_bytes
        if received_bytes > max_bytes:
            raise _too_large(max_bytes)
        # What we do between two calls, such as writing to the disk, is not the sender's time.
        waited_s = clock() - began_s
        budget_s = min(budget_s - waited_s + size_bytes / MIN_BYTES_PER_S, MAX_PAUSE_S)
        return message

    return _QuickRequest(request.scope, receive)


class _QuickRequest(Request):
    """Reads JSON with pydantic's parser: the batches are large."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return from_json(body)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error  # as FastAPI expects it


def _too_large(max_bytes: int) -> HTTPException:
    """Not one of our own errors: FastAPI would answer 400 for those while it reads a body."""
    return HTTPException(413, f"The body is larger than {max_bytes} bytes.")


def _too_slow() -> HTTPException:
    detail = (
        f"The body has to come at {MIN_BYTES_PER_S} bytes per second, with pauses up to {MAX_PAUSE_S:g} s."
    )
    return HTTPException(408, detail, headers={"Connection": "close"})


class RateLimit:
    """Fixed windows, one for each key, in this process; for use in one thread.

    ``limits`` parses them but does not count: its memory storage starts a timer thread every 10 ms that
    reads all keys. With 20,000 callers that took 20 % of a core at 700 requests per second; this takes 1 %
    at 1,400.
    """

    def __init__(self, limit: RateLimitItem, detail: str = "") -> None:
        self._limit = limit
        self._detail = detail or f"The rate limit is {limit}."
        self._windows: dict[str, tuple[float, int]] = {}
        """The end of the window, and the number of hits in it."""
        self._next_expiry = 0.0

    def __len__(self) -> int:
        """The number of keys in memory: at most those of two windows."""
        return len(self._windows)

    def check(self, key: str) -> None:
        """Raise if the window of this key is used up."""
        now = time.monotonic()
        ends, hits = self._windows.get(key, (now, 0))
        if hits >= self._limit.amount and ends > now:
            raise TooManyRequestsError(self._detail, ends - now)

    def hit(self, key: str) -> None:
        """Count a hit without a check."""
        now = time.monotonic()
        self._expire(now)
        ends, hits = self._windows.get(key, (now + self._limit.get_expiry(), 0))
        self._windows[key] = (ends, hits + 1) if ends > now else (now + self._limit.get_expiry(), 1)

    def count(self, key: str) -> None:
        """Count a request; raise if there were too many."""
        self.check(key)
        self.hit(key)

    def _expire(self, now: float) -> None:
        if now >= self._next_expiry:
            self._windows = {key: window for key, window in self._windows.items() if window[0] > now}
            self._next_expiry = now + self._limit.get_expiry()


def failed_login_limit() -> RateLimit:
    """Limits failed logins or token requests of an address; after too many no key is checked."""
    return RateLimit(parse("20/minute"), "Too many invalid keys. Wait a minute.")
