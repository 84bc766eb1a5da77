"""One API process: a socket of its own, and uvicorn behind it."""

import signal
import socket
import sys
from collections.abc import Callable
from copy import deepcopy
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from operator_api.app import create_app
from services.errors import SettingsError
from services.settings import Settings


class _AnnouncedServer(uvicorn.Server):
    """Tells when it has begun to answer."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def run_api(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes; ``announce`` is given the URL once requests are answered."""
    listening = _listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.api_root}"
    config = uvicorn.Config(create_app(settings), log_config=_log_config(), server_header=False)
    # uvicorn shuts down on SIGTERM and then raises it again, which is no reason to fail.
    signal.signal(signal.SIGTERM, _exit_quietly)
    try:
        _AnnouncedServer(config, lambda: announce(url)).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def _log_config() -> dict[str, Any]:
    """Standard output is for the announcement; all logs go to standard error."""
    config = deepcopy(LOGGING_CONFIG)
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config


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
