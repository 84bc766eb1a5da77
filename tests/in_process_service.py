"""The API in the process of the test: over ASGI, or over HTTP by a clock that the test moves."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import httpx
import uvicorn

from operator_api.app import create_app
from operator_api.request_limits import connections_up_to
from operator_api.server import _listen, _Server
from operator_api.service import Service, bootstrap
from services.settings import Settings, load_settings
from services.storage.coordination import SharedClock
from tests.integration.cell import content_digest
from tests.integration.rounds_setup import eventually
from tests.running_service import KEEP_ALIVE, OPERATOR_KEY

_HEADERS = {"Authorization": f"Bearer {OPERATOR_KEY}"}


@asynccontextmanager
async def asgi_service(data_dir: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    """The service on SQLite without a socket, and a client with the operator's key."""
    service = bootstrap(_settings(data_dir))
    app = create_app(service)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service", headers=_HEADERS) as client,
    ):
        yield client, service


class ManualClock(SharedClock):
    """Shows the time that it was set to."""

    def __init__(self) -> None:
        super().__init__()
        self._moment = datetime.now(UTC)

    def now(self) -> datetime:
        return self._moment

    def advance(self, seconds: float) -> None:
        """Move it; what is due then happens within half a second."""
        self._moment += timedelta(seconds=seconds)


@dataclass(frozen=True)
class TimedService:
    """A service over HTTP, and its clock."""

    client: httpx.Client
    clock: ManualClock
    parts: Service
    data_dir: Path

    def put_slowly(self, path: str, body: bytes, headers: dict[str, str], seconds: float) -> httpx.Response:
        """Send a body; between its first bytes and the others so much time passes."""

        def parts() -> Iterator[bytes]:
            yield body[:50]
            eventually(lambda: any((self.data_dir / "models" / "incoming").iterdir()))
            self.clock.advance(seconds)
            yield body[50:]

        return self.client.put(path, content=parts(), headers=content_digest(body) | headers)


@contextmanager
def timed_service(data_dir: Path) -> Iterator[TimedService]:
    """Start a service on SQLite in a thread; its clock stands still until the test moves it."""
    settings = _settings(data_dir)
    service, clock, ready = bootstrap(settings), ManualClock(), Event()
    service.database._clock = clock
    config = uvicorn.Config(
        create_app(service), http=connections_up_to(settings.max_connections), ws="none", log_config=None
    )
    server = _Server(config, service, ready.set)
    with _listen(settings.host, settings.port) as listening:
        thread = Thread(target=server.run, args=([listening],), name="timed service")
        thread.start()
        ready.wait()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, headers=_HEADERS, timeout=60, limits=KEEP_ALIVE) as client:
                yield TimedService(client, clock, service, data_dir)
        finally:
            server.should_exit = True
            thread.join()


def _settings(data_dir: Path) -> Settings:
    return load_settings(
        Settings, operator_key=OPERATOR_KEY, data_dir=data_dir, port=0, min_free_disk_bytes=0
    )
