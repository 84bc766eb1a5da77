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
from operator_api.connections import connections_up_to
from operator_api.service import Service, bootstrap
from services.errors import SettingsError
from services.heap import keep_heap_small
from services.logs import set_up_logs
from services.settings import Settings

_LONGEST_GOODBYE_S = 10
_OBJECTS_BETWEEN_LOOKS = 50_000
_NOTHING = nullcontext()


class _Server(uvicorn.Server):
    """Tells when it has begun to answer, and lets those go who wait when it ends."""

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
) -> None:
    """Serve until a signal comes; ``announce`` is given the URL once requests are answered.

    What runs ``beside`` is entered when the database has its newest shape, and left when serving has ended.
    """
    # uvicorn shuts down on SIGTERM and then raises it again, which is no reason to fail.
    signal.signal(signal.SIGTERM, _exit_quietly)
    keep_heap_small()
    listening = _listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.api_root}"
    set_up_logs()
    service = bootstrap(settings)
    app = create_app(service)
    spare_the_collector()
    config = uvicorn.Config(
        app,
        http=connections_up_to(settings.max_connections),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_LONGEST_GOODBYE_S,
    )
    try:
        with beside:
            _Server(config, service, lambda: announce(url)).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def spare_the_collector() -> None:
    """Set all that was made so far apart, for good, and let a whole batch of reports be made between looks.

    Else each large batch makes the garbage collector go through every imported module as well, which takes
    longer than the batch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)


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
