"""The whole stack: API, Redis and workers, each a process of its own that can be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import httpx
import redis

from tests.fork_server import ModulePopen
from tests.redis_server import redis_server
from tests.round_robin_client import round_robin_client
from tests.running_service import service_process


@dataclass
class Stack:
    """A running stack."""

    service: httpx.Client
    apis: list[Popen[str]]
    redis_process: "Popen[bytes]"
    redis_port: int
    settings: dict[str, str]
    """FEDCS_* settings, without the prefix, that API and workers share."""
    directory: Path

    @property
    def broker(self) -> redis.Redis:
        return redis.Redis(port=self.redis_port)

    @contextmanager
    def worker(self, *options: str, module: str = "operator_api", **settings: str) -> Iterator[Popen[str]]:
        """Another worker; its log is kept in the stack's directory."""
        log = self.directory / "worker.log"
        with worker_process(log, *options, module=module, **self.settings | settings) as process:
            yield process


@contextmanager
def worker_process(
    log: Path, *options: str, module: str = "operator_api", **settings: str
) -> Iterator[Popen[str]]:
    """Start ``fedcs worker`` with these options and settings; it is ready when this is entered.

    Another ``module`` may stand in for the command, to put a fault into it.
    """
    environment = os.environ | {f"FEDCS_{name.upper()}": value for name, value in settings.items()}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # it does not see into forks, and slows them down
    arguments = [sys.executable, "-m", module, "worker", *options]
    with (
        log.open("a") as stderr,
        ModulePopen[str](
            arguments, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Ready"), log.read_text()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


@contextmanager
def running_stack(
    directory: Path,
    *worker_options: str,
    api_module: str = "operator_api",
    api_processes: int = 1,
    **settings: str,
) -> Iterator[Stack]:
    """Start everything; with ``worker_options``, which are those of ``fedcs worker``, one of these too.

    Several API processes have a data directory each, and take the requests in turn.
    """
    with ExitStack() as running:
        port, redis_process = running.enter_context(redis_server(directory))
        shared = {
            "data_dir": str(directory),
            "broker_url": f"redis://127.0.0.1:{port}/0",
            **settings,
        }
        own = {name: value for name, value in shared.items() if name != "data_dir"}
        data_dirs = [directory / f"api-{place}" for place in range(api_processes)]
        started = [
            running.enter_context(service_process(data_dir, directory / "api.log", module=api_module, **own))
            for data_dir in (data_dirs if api_processes > 1 else [directory])
        ]
        clients, apis = zip(*started, strict=True)
        service = clients[0] if api_processes == 1 else running.enter_context(round_robin_client(clients))
        stack = Stack(service, list(apis), redis_process, port, shared, directory)
        if worker_options:
            running.enter_context(stack.worker(*worker_options))
        yield stack
