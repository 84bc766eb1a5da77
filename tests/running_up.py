"""``fedcs up`` as real processes, and a look at all that runs because of it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from services.startup import read_announcement
from tests.running_service import OPERATOR_KEY

TASK = {"model": "paper-cnn", "dataset": "generated", "round_deadline_s": 60, "clock": "simulated"}
UP_COMMAND = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--verbose"]


@dataclass(frozen=True)
class Up:
    """One that is ready."""

    process: subprocess.Popen[str]
    service: httpx.Client
    environment: dict[str, str]
    said: list[str]
    """What it printed until it was ready."""
    log: Path

    def children(self, program: str) -> set[int]:
        """The processes of a program that ``up`` itself has started."""
        return {
            pid
            for pid, (parent, command) in processes_of(self.environment).items()
            if parent == self.process.pid and program in command
        }

    def redis(self) -> set[int]:
        return self.children("redis-server")

    def worker(self) -> set[int]:
        return self.children("operator_api worker")

    def everything(self) -> set[int]:
        """Whatever runs in this stack, wherever it hangs."""
        return set(processes_of(self.environment))

    def status(self) -> str:
        status: str = self.service.get("/readyz").json()["status"]
        return status

    def make_task(self) -> str:
        created = self.service.post("/tasks", json=TASK)
        assert created.status_code == 201, created.text
        task_id: str = created.json()["task_id"]
        return task_id

    def has_model(self, task_id: str) -> bool:
        return bool(self.service.get(f"/tasks/{task_id}").json()["state"] == "ready")


def processes_of(environment: dict[str, str]) -> dict[int, tuple[int, str]]:
    """Parent and command of all processes with this directory for temporary files.

    Redis overwrites its environment, but works in a directory that was made there.
    """
    temporary = environment["TMPDIR"]
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
            if f"TMPDIR={temporary}".encode() in variables or str((place / "cwd").readlink()).startswith(
                temporary
            ):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(place.name)] = (parent, command)
        except OSError:  # it has ended meanwhile
            continue
    return found


def up_environment(tmp_path: Path, temporary: str, **changes: str) -> dict[str, str]:
    """What it is started with; its data are in a directory of ``tmp_path``."""
    ours = {
        "TMPDIR": temporary,
        "FEDCS_DATA_DIR": str(tmp_path / "data"),
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_MIN_FREE_DISK_BYTES": "0",
    }
    return os.environ | ours | changes


@contextmanager
def running_up(tmp_path: Path, **changes: str) -> Iterator[Up]:
    """Start it; whatever of it still runs at the end is killed."""
    log = tmp_path / "log"
    with (
        tempfile.TemporaryDirectory(prefix="fedcs up ") as temporary,  # shorter than pytest's; with spaces
        log.open("a") as stderr,
        subprocess.Popen(
            UP_COMMAND,
            env=(environment := up_environment(tmp_path, temporary, **changes)),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            said: list[str] = []
            announced = read_announcement(_noting(process.stdout, said))
            assert announced is not None, log.read_text()
            headers = {"Authorization": f"Bearer {announced.created_key or OPERATOR_KEY}"}
            with httpx.Client(base_url=announced.url, headers=headers, timeout=60) as service:
                yield Up(process, service, environment, said, log)
        finally:
            process.kill()
            for left in processes_of(environment):
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)


def _noting(lines: Iterable[str], noted: list[str]) -> Iterator[str]:
    for line in lines:
        noted.append(line)
        yield line
