"""A service that is killed and started again, on the same port and data."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from tests.running_service import service_process


class RestartedService:
    """A service that can be killed, and started again."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        self._directory = directory
        self._running = running
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.service: httpx.Client
        self._process: subprocess.Popen[str]

    def start(self) -> None:
        """Start it; it answers when this is done."""
        log = self._directory / "service.log"
        context = service_process(self._directory, log, port=str(self._port))
        self.service, self._process = self._running.enter_context(context)

    def kill(self) -> None:
        """Let it end at once, whatever it does."""
        self._process.kill()
        self._process.wait()


@contextmanager
def restarted_service(directory: Path) -> Iterator[RestartedService]:
    """A running service."""
    with ExitStack() as running:
        restarted = RestartedService(directory, running)
        restarted.start()
        yield restarted
