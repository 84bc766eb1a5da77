"""A typed client of the API, synchronous and asynchronous.

Both send calls (``client_sim.calls``) until they are answered: what fails for now is tried again, with
growing pauses, until the caller's patience ends. A call that must not be done twice has an
``Idempotency-Key``, the same for all of its attempts; so a service may be restarted at any time.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self, TypeVar

import httpx
from httpx_aiohttp import AiohttpTransport

from client_sim.attempts import FAILURES, ApiError, Attempts, Service, UnreachableError
from client_sim.calls import Call
from client_sim.event_stream import follow_events
from services.contract.events import EventResponse

__all__ = ["Api", "ApiError", "AsyncApi", "UnreachableError"]

Answer = TypeVar("Answer")

_MANY = httpx.Limits(max_connections=0, keepalive_expiry=4.0)
"""No limit: each device may have a connection. The service closes what is idle for 5 s: be faster."""


class Api:
    """The API for one caller at a time, such as the software of a device."""

    def __init__(
        self, url: str, key: str, *, patience_s: float = 60.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._service = Service(url, key, patience_s)
        self._client = httpx.Client(transport=transport)

    def send(self, call: Call[Answer], key: str | None = None) -> Answer:
        """Send a call until it is answered; with a ``key`` of its own, if given."""
        attempts = Attempts(self._service, call, key)
        while True:
            try:
                return attempts.answer(self._client.send(attempts.request()))
            except FAILURES as failure:
                time.sleep(attempts.pause_after(failure))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncApi:
    """The API for thousands of callers in one process, each with a key of its own."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        patience_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._service = Service(url, key, patience_s)
        # httpx's own transport looks at all of its connections for each request: too slow for many devices.
        self._client = httpx.AsyncClient(transport=transport or AiohttpTransport(limits=_MANY))

    async def send(self, call: Call[Answer], key: str | None = None) -> Answer:
        """Send a call until it is answered; with a ``key`` of its own, if given."""
        attempts = Attempts(self._service, call, key)
        while True:
            try:
                return attempts.answer(await self._client.send(attempts.request()))
            except FAILURES as failure:
                await asyncio.sleep(attempts.pause_after(failure))

    def events(
        self, task_id: str | None = None, round_id: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[EventResponse]]:
        """What happens from the moment this is entered, without gaps; of one task or round, if given."""
        return follow_events(self._service, self._client, task_id, round_id)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
