"""Limits on what a request may send, and on how slowly, kept while it is read."""

import asyncio
import json
import time
from typing import Any

from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

PATIENCE_S = 30.0
"""A body may pause for so long, if it came at a good pace before."""
MIN_BYTES_PER_S = 1024
"""A body that comes more slowly uses up our patience."""


def with_body_limit(request: Request, max_bytes: int) -> Request:
    """The same request, refused as soon as its body is announced or turns out to be larger, or too slow."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "Send the body as it is: no Content-Encoding is taken.")
    received_bytes = 0
    patience_s = PATIENCE_S

    async def receive() -> Message:
        nonlocal received_bytes, patience_s
        began = time.monotonic()
        try:
            async with asyncio.timeout(patience_s):
                message = await request.receive()
        except TimeoutError as error:
            raise _too_slow() from error
        size_bytes = len(message.get("body", b""))
        received_bytes += size_bytes
        if received_bytes > max_bytes:
            raise _too_large(max_bytes)
        # What we do between two calls, such as writing to the disk, is not the sender's time.
        waited_s = time.monotonic() - began
        patience_s = min(patience_s - waited_s + size_bytes / MIN_BYTES_PER_S, PATIENCE_S)
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
        f"The body has to come at {MIN_BYTES_PER_S} bytes per second, with pauses up to {PATIENCE_S:g} s."
    )
    return HTTPException(408, detail, headers={"Connection": "close"})
