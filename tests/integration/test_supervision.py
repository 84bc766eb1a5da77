"""A supervised program that cannot start, that does not want to end, that leaves others behind."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from operator_api import supervision
from operator_api.supervision import Supervised
from tests.redis_server import eventually

STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""
LEAVES_ONE_BEHIND = """
import pathlib, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(left.pid))
"""


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_one_that_cannot_start_is_tried_a_few_times_and_then_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_PAUSE_S", 0.01)
    starts = tmp_path / "starts"
    command = ["/bin/sh", "-c", f"echo started >> {starts}; exit 3"]
    with capture_logs() as logs, Supervised("hopeless", command):
        assert eventually(lambda: any(log["log_level"] == "error" for log in logs), 60)
        time.sleep(1)  # it would be started many times more
        assert starts.read_text().count("started") == 5
    assert [log["log_level"] for log in logs] == ["warning"] * 4 + ["error"]
    assert all(log["end"] == "exit code 3" for log in logs)


def test_one_that_is_not_there_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_PAUSE_S", 0.01)
    with capture_logs() as logs, Supervised("missing", ["/nowhere/at-all"]):
        assert eventually(lambda: len(logs) >= 2, 60)


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_PATIENCE_S", 0.5)
    pid = tmp_path / "pid"
    with capture_logs() as logs, Supervised("stubborn", [sys.executable, "-c", STUBBORN, str(pid)]):
        assert eventually(lambda: pid.exists() and bool(pid.read_text()), 60)
    assert not lives(int(pid.read_text()))
    assert [log["event"] for log in logs] == ["a process had to be killed"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C does what it does in a new process, whatever another test has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_who_asks_twice_does_not_wait(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    supervised = Supervised("stubborn", [sys.executable, "-c", STUBBORN, str(pid)])

    def ask_again() -> None:
        supervised._stopping.wait()
        time.sleep(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    asking = threading.Thread(target=ask_again)
    with pytest.raises(KeyboardInterrupt), supervised:  # noqa: PT012 - it comes as the inner one ends
        assert eventually(lambda: pid.exists() and bool(pid.read_text()), 60)
        asking.start()
    asking.join()
    assert not lives(int(pid.read_text()))


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with Supervised("careless", [sys.executable, "-c", LEAVES_ONE_BEHIND, str(pid)]):
        assert eventually(lambda: pid.exists() and bool(pid.read_text()), 60)
        left = int(pid.read_text())
        assert eventually(lambda: not lives(left), 60)
