"""A limit on what a request may send, kept while it is read."""

import json
from typing import Any

from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message


def with_body_limit(request: Request, max_bytes: int) -> Request:
    """The same request, refused as soon as its body is announced or turns out to be larger."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    received_bytes = 0

    async def receive() -> Message:
        nonlocal received_bytes
        message = await request.receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > max_bytes:
            raise _too_large(max_bytes)
        return message

    return _QuickRequest(request.scope, receive)


class _QuickRequest(Request):
    """Reads JSON with pydantic's parser: the batches are large."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return from_json(body)
        except ValueError:
            return json.loads(body)  # which knows better where the mistake is


def _too_large(max_bytes: int) -> HTTPException:
    """Not one of our own errors: FastAPI would answer 400 for those while it reads a body."""
    return HTTPException(413, f"The body is larger than {max_bytes} bytes.")
