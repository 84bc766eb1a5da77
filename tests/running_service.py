"""A real service in a process of its own, and a client that has its key."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx

from tests.fork_server import ModulePopen

OPERATOR_KEY = "test-operator-key-3f9c1b7a52d8e604"
KEEP_ALIVE = httpx.Limits(max_connections=100, max_keepalive_connections=None)
"""Threads share a client: with a limit, one thread may close an idle connection that another just took."""


@contextmanager
def running_service(data_dir: Path, *options: str, **settings: str) -> Iterator[httpx.Client]:
    """Start ``fedcs serve`` with these options on a free port with these ``FEDCS_*`` settings."""
    with service_process(data_dir, None, *options, **settings) as (client, _):
        yield client


@contextmanager
def service_process(
    data_dir: Path, log: Path | None, /, *options: str, module: str = "operator_api", **settings: str
) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """The same, with the process at hand, to be killed; its standard error may go to a file.

    Another ``module`` may stand in for the command.
    """
    environment = os.environ | {
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_PORT": "0",
        "FEDCS_DATA_DIR": str(data_dir),
        "FEDCS_MIN_FREE_DISK_BYTES": "0",
        **{f"FEDCS_{name.upper()}": value for name, value in settings.items()},
    }
    key = environment["FEDCS_OPERATOR_KEY"]
    command = [sys.executable, "-m", module, "serve", *options]
    with (
        nullcontext() if log is None else log.open("a") as stderr,
        ModulePopen[str](
            command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("Ready at ").strip()
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=url, headers=headers, timeout=60, limits=KEEP_ALIVE) as client:
                yield client, process
        finally:
            process.terminate()


def widen_default_cell(service: httpx.Client) -> None:
    """Let the open rounds of many tests have resource blocks at the same time."""
    response = service.patch("/cells/default", json={"resource_blocks": 10_000})
    assert response.status_code == 200, response.text
