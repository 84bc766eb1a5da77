"""What the workload sent and the service acknowledged, recorded apart from the service."""

import hashlib
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from httpx_aiohttp import AiohttpTransport

_UPDATE = re.compile(r".*/rounds/([^/]+)/updates/([^/]+)")
_TRY_AGAIN = {429, 502, 503, 504}


@dataclass(frozen=True)
class SentUpdate:
    """An update as a client sent it."""

    round_id: str
    client_id: str
    digest: str
    data_samples: int


@dataclass
class History:
    """All that was sent and acknowledged."""

    directory: Path
    """Where the updates are kept, each under its digest."""
    sent: set[SentUpdate] = field(default_factory=set)
    updates: set[SentUpdate] = field(default_factory=set)
    """Those acknowledged."""
    reports: dict[tuple[str, float], float] = field(default_factory=dict)
    """Those acknowledged, by client and throughput, of which no two are the same; and when, by this clock."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of attempts: ``report`` or ``update``, and ``acknowledged``, ``refused`` or ``retried``."""

    def send(self, update: SentUpdate, content: bytes) -> None:
        """Keep an update before it is sent: it may arrive though nobody hears of it."""
        self.sent.add(update)
        path = self.path_of(update.digest)
        if not path.exists():
            path.write_bytes(content)

    def path_of(self, digest: str) -> Path:
        """Where an update is kept."""
        return self.directory / digest

    def note(self, what: str, status: int | None) -> bool:
        """Note how an attempt ended (without a status: nobody knows); whether it was acknowledged."""
        if status is None or status in _TRY_AGAIN:
            outcome = "retried"
        else:
            outcome = "acknowledged" if status in (200, 201) else "refused"
        self.outcomes[what, outcome] += 1
        return outcome == "acknowledged"


class RecordingTransport(httpx.AsyncBaseTransport):
    """Sends requests as the simulator does, and writes down those whose answers oblige the service."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._transport = AiohttpTransport(limits=httpx.Limits(max_connections=0, keepalive_expiry=4.0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        if request.method == "PUT" and (found := _UPDATE.fullmatch(request.url.path)):
            return await self._send_update(request, *found.groups())
        if request.method == "POST" and request.url.path == "/reports":
            return await self._send_report(request)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _send_update(self, request: httpx.Request, round_id: str, client_id: str) -> httpx.Response:
        content = await request.aread()
        samples = int(request.headers["Fedcs-Data-Samples"])
        update = SentUpdate(round_id, client_id, hashlib.sha256(content).hexdigest(), samples)
        self._history.send(update, content)
        response, acknowledged = await self._noted("update", request)
        if acknowledged:
            self._history.updates.add(update)
        return response

    async def _send_report(self, request: httpx.Request) -> httpx.Response:
        report = json.loads(await request.aread())
        response, acknowledged = await self._noted("report", request)
        if acknowledged:
            self._history.reports[report["client_id"], report["throughput_bps"]] = time.monotonic()
        return response

    async def _noted(self, what: str, request: httpx.Request) -> tuple[httpx.Response, bool]:
        try:
            response = await self._transport.handle_async_request(request)
        except Exception:
            self._history.note(what, None)
            raise
        return response, self._history.note(what, response.status_code)
