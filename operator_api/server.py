"""One API process: a socket of its own, and uvicorn behind it."""

import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

import uvicorn

from operator_api.app import create_app
from operator_api.request_limits import connections_up_to
from operator_api.service import Service, bootstrap
from services.errors import SettingsError
from services.logs import set_up_logs
from services.settings import Settings

_SHUTDOWN_TIMEOUT_S = 10
_GC_THRESHOLD = 50_000
_NOTHING = nullcontext()


class _Server(uvicorn.Server):
    """Calls ``announce`` after start-up, and ends long polls and streams at shutdown."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.hub.close()
        await super().shutdown(sockets)


def run_api(
    settings: Settings,
    announce: Callable[[str], None],
    beside: AbstractContextManager[object] = _NOTHING,
    *,
    accept_empty_database: bool = False,
) -> None:
    """Serve until a signal comes; ``announce`` is given the URL once requests are answered.

    What runs ``beside`` is entered when the database is migrated, and left when serving has ended.
    """
    # uvicorn shuts down on SIGTERM and then raises it again, which is no reason to fail.
    signal.signal(signal.SIGTERM, _exit_quietly)
    listening = _listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.api_root}"
    set_up_logs()
    service = bootstrap(settings, accept_empty_database=accept_empty_database)
    app = create_app(service)
    spare_the_collector()
    config = uvicorn.Config(
        app,
        http=connections_up_to(settings.max_connections),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    try:
        with beside:
            _Server(config, service, lambda: announce(url)).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def spare_the_collector() -> None:
    """Freeze the objects of start-up, and raise the threshold above the objects of a batch of reports.

    Otherwise each large batch makes the garbage collector traverse every imported module, which takes longer
    than the batch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening


def _exit_quietly(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)
