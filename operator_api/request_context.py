"""The outermost middleware: correlator, access log, metrics, security headers, unhandled errors."""

import random
import re
import time
import uuid
from collections.abc import Collection

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from operator_api.monitoring import Monitoring
from operator_api.problems import bug_response

_CORRELATOR = re.compile(r"[a-zA-Z0-9_:;./<>{}-]{1,256}")
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
_OWN_PAGES = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'"
)

_IS_HEAD = "fedcs.is_head"
_log = structlog.get_logger("operator_api.access")


class RequestContext:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, monitoring: Monitoring) -> None:
        self._app = app
        self._monitoring = monitoring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, log it and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-correlator", "")
        correlator = given if _CORRELATOR.fullmatch(given) else _new_correlator()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(correlator=correlator)
        status = 0
        began = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(MutableHeaders(scope=message), correlator)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            _log.exception("unhandled error", method=scope["method"], path=scope["path"])
            if status:  # too late for another answer
                raise
            await bug_response()(scope, receive, send_with_headers)
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "")
        self._monitoring.request_answered(scope["method"], route, status, seconds)
        _log.info(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 2),
            **scope.get("path_params", {}),
        )


class HeadRequests:
    """Answers HEAD as GET is answered, without the body; not where an answer may take for ever."""

    def __init__(self, app: ASGIApp, without: Collection[str]) -> None:
        self._app = app
        self._without = frozenset(without)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD request on as GET, and its answer back without the body."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"] in self._without:
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            is_body = message["type"] == "http.response.body"
            await send({**message, "body": b""} if is_body else message)

        await self._app({**scope, "method": "GET", _IS_HEAD: True}, receive, send_without_body)


def is_head(scope: Scope) -> bool:
    """Whether a request that came as HEAD is answered as GET is."""
    return bool(scope.get(_IS_HEAD))


def _new_correlator() -> str:
    """Unique, but no secret: asking the system for random bytes would let other threads in first."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def _add_headers(headers: MutableHeaders, correlator: str) -> None:
    headers["x-correlator"] = correlator
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    is_page = headers.get("content-type", "").startswith("text/html")
    headers.setdefault("Content-Security-Policy", _OWN_PAGES if is_page else _NOTHING)
    headers.setdefault("Cache-Control", "no-store")
