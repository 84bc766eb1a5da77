"""A typed client of the API, synchronous and asynchronous.

Both send calls (``fedcs_client.endpoints``) and retry temporary failures with growing pauses for up to
``retry_timeout_s``. A call that creates something has an ``Idempotency-Key``, the same for all its attempts,
so the service may be restarted at any time.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar

import httpx

from fedcs_client.endpoints import Call
from fedcs_client.event_stream import follow_events
from fedcs_client.retry import FAILURES, ApiError, Attempts, BrokenAnswerError, Service, UnreachableError
from services.contract.common import EventResponse

__all__ = ["Api", "ApiError", "AsyncApi", "UnreachableError"]

Answer = TypeVar("Answer")

_MANY = httpx.Limits(max_connections=0, keepalive_expiry=4.0)
"""No limit: each device may have a connection. The service closes connections that are idle for 5 s."""


class Api:
    """The synchronous client, for example for the software of a device."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        retry_timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._service = Service(url, key, retry_timeout_s)
        self._client = httpx.Client(transport=transport)

    def send(self, call: Call[Answer], key: str | None = None) -> Answer:
        """Send a call until it is answered; with a ``key`` of its own, if given."""
        attempts = Attempts(self._service, call, key)
        while True:
            try:
                return attempts.answer(self._client.send(attempts.request()))
            except FAILURES as failure:
                time.sleep(attempts.pause_after(failure))

    def download(self, call: Call[bytes], digest: str) -> bytes:
        """Download a file; after an interruption the download is resumed where it stopped.

        ``digest`` is the SHA-256 of the file, in hex.
        """
        attempts = Attempts(self._service, call, None)
        content = bytearray()
        while True:
            try:
                request = attempts.request()
                if content:
                    request.headers["Range"] = f"bytes={len(content)}-"
                    request.headers["If-Range"] = f'"{digest}"'
                response = self._client.send(request, stream=True)
                try:
                    self._append(attempts, response, content)
                finally:
                    response.close()
                if hashlib.sha256(content).hexdigest() == digest:
                    return bytes(content)
                content.clear()
                raise BrokenAnswerError(f"{call.path} does not have the digest {digest}")
            except FAILURES as failure:
                time.sleep(attempts.pause_after(failure))

    def _append(self, attempts: Attempts[bytes], response: httpx.Response, content: bytearray) -> None:
        if not response.is_success:
            response.read()
            raise attempts.refusal(response)
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            content.clear()
        for chunk in response.iter_raw():
            content.extend(chunk)

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
    """The asynchronous client: thousands of callers in one process, each with its own key."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        retry_timeout_s: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._service = Service(url, key, retry_timeout_s)
        self._client = httpx.AsyncClient(transport=transport or _transport())

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
        """Follow events without gaps from the time of entry; of one task or round, if given."""
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


def _transport() -> httpx.AsyncBaseTransport:
    """aiohttp's, if the extra ``simulator`` is installed.

    httpx's own transport searches all of its connections for each request: too slow for many devices.
    """
    try:
        from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415
    except ModuleNotFoundError:
        return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0))
    return AiohttpTransport(limits=_MANY)
