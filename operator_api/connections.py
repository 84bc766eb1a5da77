"""What one connection may cost before it has said what it wants: time, bytes, and a place among the others.

uvicorn waits for the end of a request's headers for as long as it takes, and keeps what has come of them
however much it is; what comes after an early refusal it reads and drops without end. Bodies are bounded by
``body_limit``, where there is somebody to answer.
"""

import resource
from asyncio import BaseTransport, TimerHandle, Transport
from http import HTTPStatus
from typing import ClassVar, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from operator_api.problems import problem_response

HEADERS_S = 10.0
"""From the first byte of a request, or the beginning of its connection, to the end of its headers."""
MAX_HEADER_BYTES = 64 * 1024
"""The request line and all headers together."""
_OTHER_FILES = 256
"""The database, models that come and go, the broker."""


class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed when its next request does not begin in time, or begins too largely."""

    most_connections: ClassVar[int]

    _in_headers = False
    _header_bytes = 0
    """Since the last byte of a body: headers, and what may come as headers after a body in chunks."""
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Let it in, if there is room."""
        if len(self.connections) >= self.most_connections:
            self.transport = cast(Transport, transport)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS", "Come again later.")
            return
        super().connection_made(cast(Transport, transport))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time it had."""
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; between two requests, only for so long and so much."""
        self._header_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_headers()
        if self.cycle is None or self.cycle.response_complete:
            self._watch()
        else:
            self._unwatch()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_headers, self._header_bytes = True, 0
        super().on_message_begin()

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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless that has been done."""
        if not self.transport.is_closing():
            self._refuse(HTTPStatus.BAD_REQUEST, "MALFORMED_HTTP", msg)

    def _watch(self) -> None:
        """Begin to wait for a request; more bytes that are none do not make it longer."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self._give_up)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
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

    def _refuse(self, status: HTTPStatus, cause: str, detail: str) -> None:
        answer = problem_response(status, cause, detail, headers={"Connection": "close"})
        headers = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[status], *headers, b"\r\n", answer.body]))
        self.transport.close()


def connections_up_to(most: int) -> type[BoundedConnection]:
    """The kind of connection for a process that is to have so many at a time."""
    return type("LimitedConnection", (BoundedConnection,), {"most_connections": allow_connections(most)})


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files as far as needed and allowed; how many connections that leaves room for.

    Without room to spare, those who hold connections would keep others from the database and the model store.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(wanted + _OTHER_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed - _OTHER_FILES, 1)
