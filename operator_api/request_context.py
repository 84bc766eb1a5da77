"""What surrounds every request: its correlator, its line in the log, security headers, and a net for bugs."""

import random
import re
import time
import uuid

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

_log = structlog.get_logger("operator_api.access")


class RequestContext:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, monitoring: Monitoring) -> None:
        self._app = app
        self._monitoring = monitoring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and see to it that it is answered and noted."""
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
