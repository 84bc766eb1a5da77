"""A service of one's own: ``fedcs up`` as a process that ends with this one, even if this one is killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from services.announcement import Announcement, read_announcement
from services.errors import ServiceStartError


@contextmanager
def own_stack(console: Console, data_dir: Path) -> Iterator[Announcement]:
    """The whole stack on a free port, with its data and its log in this directory."""
    leash = [sys.executable, "-m", "operator_api.leash", str(os.getpid())]
    command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", str(data_dir)]
    log_path = data_dir / "service.log"
    with (
        log_path.open("w") as log,
        subprocess.Popen(  # noqa: S603 - our own command
            [*leash, *command], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None, "asked for"
            with console.status("Starting the service"):
                announcement = read_announcement(process.stdout)
            if announcement is None:
                raise ServiceStartError(f"the service did not start:\n{log_path.read_text()}")
            yield announcement
        finally:
            process.terminate()
