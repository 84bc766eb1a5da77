"""``python -m trainer_worker.health`` beside a real worker, and what it says when something is wrong."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import run_module
from tests.redis_server import eventually, redis_server
from tests.running_stack import Stack, running_stack
from trainer_worker.health import is_heartbeat_fresh

_LONG_AGO_S = 1_000_000.0
_LONGER_THAN_A_BEAT_S = 7.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


def _check(stack: Stack, pulse: Path | None, **settings: str) -> tuple[int, str]:
    """What the health check ends with, and what it says."""
    given = stack.settings | settings | ({} if pulse is None else {"heartbeat_file": str(pulse)})
    environment = os.environ | {f"FEDCS_{name.upper()}": value for name, value in given.items()}
    done = run_module("trainer_worker.health", env=environment)
    return done.returncode, done.stderr


def _age(pulse: Path) -> None:
    os.utime(pulse, (_LONG_AGO_S, _LONG_AGO_S))


def _beats(pulse: Path) -> bool:
    return is_heartbeat_fresh(pulse, time.time())


def _has_stopped(pulse: Path) -> bool:
    _age(pulse)
    time.sleep(_LONGER_THAN_A_BEAT_S)
    return not _beats(pulse)


def test_a_worker_is_healthy_until_it_is_killed(stack: Stack, tmp_path: Path) -> None:
    pulse = tmp_path / "pulse"
    assert _check(stack, pulse) == (1, "worker: it does not consume messages\n")
    with stack.worker("--processes", "1", heartbeat_file=str(pulse)) as worker:
        assert eventually(pulse.exists)
        _age(pulse)
        assert eventually(lambda: _beats(pulse)), "it is touched again and again"
        assert _check(stack, pulse) == (0, "")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    _age(pulse)
    assert _check(stack, pulse) == (1, "worker: it does not consume messages\n")


def test_a_worker_that_hangs_is_not_healthy(stack: Stack, tmp_path: Path) -> None:
    pulse = tmp_path / "pulse"
    with stack.worker("--processes", "1", heartbeat_file=str(pulse)) as worker:
        assert eventually(pulse.exists)
        worker.send_signal(signal.SIGSTOP)
        try:
            _age(pulse)
            time.sleep(_LONGER_THAN_A_BEAT_S)
            assert _check(stack, pulse) == (1, "worker: it does not consume messages\n")
        finally:
            worker.send_signal(signal.SIGCONT)
        assert eventually(lambda: _beats(pulse))


def test_the_pulse_stops_with_the_broker_and_comes_back_with_it(tmp_path: Path) -> None:
    pulse = tmp_path / "pulse"
    with (
        running_stack(tmp_path) as stack,
        stack.worker("--processes", "1", heartbeat_file=str(pulse)),
    ):
        assert eventually(pulse.exists)
        stack.redis_process.kill()
        stack.redis_process.wait()
        assert eventually(lambda: _has_stopped(pulse))
        code, said = _check(stack, pulse)
        assert code == 1
        assert said.startswith("worker: it does not consume messages\nbroker: not reached: ")
        with redis_server(tmp_path, stack.redis_port):
            assert eventually(lambda: _beats(pulse))
            assert _check(stack, pulse) == (0, "")


@pytest.mark.parametrize(
    ("url", "trouble"),
    [
        ("sqlite:///{}/empty.sqlite", "database: its schema does not match this version\n"),
        ("sqlite:///{}/nowhere/fedcs.sqlite", "database: unable to open database file\n"),
    ],
)
def test_a_database_that_is_no_use_is_told_of(stack: Stack, tmp_path: Path, url: str, trouble: str) -> None:
    pulse = tmp_path / "pulse"
    pulse.touch()
    assert _check(stack, pulse, database_url=url.format(tmp_path)) == (1, trouble)


def test_without_a_file_to_look_at_nothing_is_claimed(stack: Stack) -> None:
    code, said = _check(stack, None)
    assert (code, said.startswith("worker: FEDCS_HEARTBEAT_FILE is not set")) == (1, True)


def test_without_settings_it_says_which_are_missing(stack: Stack) -> None:
    code, said = _check(stack, None, broker_url="", device="abacus")
    assert code == 1
    assert "FEDCS_DEVICE" in said
