"""Connect to a running service, or start one for this run."""

import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.errors import FedCSError, ServiceStartError
from services.startup import read_announcement


class OpenFilesError(FedCSError):
    """The limit on open files is too low for the number of clients."""

    cause: ClassVar[str] = "TOO_FEW_OPEN_FILES"


def allow_open_files(needed: int) -> None:
    """Raise the limit on open files of this process to the number needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        raise OpenFilesError(
            f"this run may need {needed} open files, but the system allows {hard}: "
            "raise the limit (ulimit -Hn), or use fewer clients"
        ) from error


_CONNECT_TIMEOUT_S = 2.0
_RETRY_S = 120.0
"""Long enough for a restart of the service, with migrations."""


@asynccontextmanager
async def connect(url: str, key: str) -> AsyncIterator[AsyncApi]:
    """Check that the service is ready and accepts the key; then yield a client that retries."""
    async with AsyncApi(url, key, retry_timeout_s=_CONNECT_TIMEOUT_S) as api:
        await api.send(endpoints.readiness())
        await api.send(endpoints.list_tasks(1))
    async with AsyncApi(url, key, retry_timeout_s=_RETRY_S) as api:
        yield api


@dataclass(frozen=True)
class StartedStack:
    """The address and the operator key of a service that was started here."""

    url: str
    operator_key: str


@contextmanager
def start_stack(console: Console, data_dir: Path) -> Iterator[StartedStack]:
    """Run ``fedcs up`` on a free port; its data and log are in ``data_dir``."""
    environment = {name: value for name, value in os.environ.items() if name != "FEDCS_OPERATOR_KEY"}
    with_parent = [sys.executable, "-m", "operator_api.supervisor", str(os.getpid())]
    options = ["--port", "0", "--verbose", "--data-dir", str(data_dir)]
    command = [sys.executable, "-m", "operator_api", "up", *options]
    log_path = data_dir / "service.log"
    with (
        log_path.open("w") as log,
        subprocess.Popen(  # noqa: S603 - our own command
            [*with_parent, *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None, "it is a pipe"
            with console.status("Starting the service"):
                announcement = read_announcement(process.stdout)
            if announcement is None:
                raise ServiceStartError(f"the service did not start:\n{log_path.read_text()}")
            assert announcement.created_key is not None, "FEDCS_OPERATOR_KEY is not set"
            yield StartedStack(announcement.url, announcement.created_key)
        finally:
            process.terminate()
