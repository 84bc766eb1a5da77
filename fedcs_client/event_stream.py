"""Server-sent events: after an interruption the stream continues after the last received event."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from fedcs_client.endpoints import Call
from fedcs_client.retry import FAILURES, Attempts, BrokenAnswerError, Service
from services.contract.common import EventResponse


@asynccontextmanager
async def follow_events(
    service: Service, client: httpx.AsyncClient, task_id: str | None, round_id: str | None
) -> AsyncIterator[AsyncIterator[EventResponse]]:
    """The events from the time of entry; an interrupted stream is resumed."""
    filters = {"task_id": task_id, "round_id": round_id}
    params = {name: value for name, value in filters.items() if value is not None}
    stream = _Stream(client, Attempts(service, Call("GET", "/events", bytes, params=params), None))
    try:
        await stream.begin()
        yield stream
    finally:
        await stream.disconnect()


class _Stream(AsyncIterator[EventResponse]):
    """The stream, across reconnections."""

    def __init__(self, client: httpx.AsyncClient, attempts: Attempts[bytes]) -> None:
        self._client = client
        self._attempts = attempts
        self._response: httpx.Response | None = None
        self._rest = b""
        self._last: int | None = None
        self._waiting: deque[EventResponse] = deque()

    async def begin(self) -> None:
        """Connect and receive the number of the latest event, which the service sends first."""
        while self._last is None:
            await self._receive_with_retries()

    async def __anext__(self) -> EventResponse:
        while not self._waiting:
            await self._receive_with_retries()
        return self._waiting.popleft()

    async def disconnect(self) -> None:
        """Close the connection."""
        if self._response is not None:
            response, self._response = self._response, None
            await response.aclose()

    async def _receive_with_retries(self) -> None:
        try:
            await self._receive()
        except FAILURES as failure:
            await self.disconnect()
            await asyncio.sleep(self._attempts.pause_after(failure))

    async def _receive(self) -> None:
        if self._response is None:
            await self._connect()
        part = await anext(self._parts, None)
        if part is None:
            raise BrokenAnswerError("the stream of events has ended")
        self._attempts.reset_retries()
        *messages, self._rest = (self._rest + part).split(b"\n\n")
        for message in messages:
            self._take(message)

    async def _connect(self) -> None:
        request = self._attempts.request()
        if self._last is not None:
            request.headers["Last-Event-ID"] = str(self._last)
        response = await self._client.send(request, stream=True)
        try:
            if not response.is_success:
                await response.aread()
                raise self._attempts.refusal(response)
        except BaseException:
            await response.aclose()
            raise
        self._response, self._rest = response, b""
        self._parts = response.aiter_raw()

    def _take(self, message: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in message.split(b"\n") if b": " in line)
        if b"id" in fields:
            self._last = int(fields[b"id"])
        if b"data" in fields:
            self._waiting.append(EventResponse.model_validate_json(fields[b"data"]))
