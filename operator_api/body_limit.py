"""A limit on what a request may send, kept while it is read.

Starlette has such a middleware, but it answers in plain text; here the error takes the way of all others.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Refuse a body that is announced or turns out to be larger than ``max_bytes``."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a watch on what is received."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        announced_bytes = int(announced) if announced.isdecimal() else 0
        received_bytes = 0

        async def receive_within_limit() -> Message:
            nonlocal received_bytes
            self._check(announced_bytes)
            message = await receive()
            received_bytes += len(message.get("body", b""))
            self._check(received_bytes)
            return message

        await self._app(scope, receive_within_limit, send)

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise HTTPException(413, f"The body is larger than {self._max_bytes} bytes.")
