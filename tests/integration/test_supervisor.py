"""A supervised program that cannot start, that does not want to end, that leaves others behind."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from operator_api import supervisor
from operator_api.supervisor import Supervised
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


def test_one_that_cannot_start_is_started_again_and_again_with_a_bounded_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor, "_MAX_PAUSE_S", 0.05)
    command = ["/bin/sh", "-c", f"echo started >> {tmp_path / 'starts'}; exit 3"]
    with capture_logs() as logs, Supervised("hopeless", command):
        assert eventually(lambda: len(logs) >= 8, 60), "it is not given up"
    assert [log["pause_s"] for log in logs[:8]] == [0.01, 0.02, 0.04, *[0.05] * 5]
    assert [log["log_level"] for log in logs[:8]] == ["warning"] * 4 + ["error"] * 4
    assert all(log["end"] == "exit code 3" for log in logs)
    assert (tmp_path / "starts").read_text().count("started") >= 8


def test_one_that_is_not_there_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.01)
    with capture_logs() as logs, Supervised("missing", ["/nowhere/at-all"]):
        assert eventually(lambda: len(logs) >= 2, 60)


def test_it_gets_the_environment_without_the_operator_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCS_OPERATOR_KEY", "a secret of the API")
    monkeypatch.setenv("FEDCS_OTHER", "inherited")
    found = tmp_path / "environment"
    command = ["/bin/sh", "-c", f"env > {found}.new; mv {found}.new {found}; sleep 600"]
    with Supervised("curious", command, FEDCS_OWN="given"):
        assert eventually(found.exists, 60)
    variables = dict(line.split("=", 1) for line in found.read_text().splitlines() if "=" in line)
    assert variables["FEDCS_OTHER"] == "inherited"
    assert variables["FEDCS_OWN"] == "given"
    assert "FEDCS_OPERATOR_KEY" not in variables


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_STOP_TIMEOUT_S", 0.5)
    pid = tmp_path / "pid"
    with capture_logs() as logs, Supervised("stubborn", [sys.executable, "-c", STUBBORN, str(pid)]):
        assert eventually(lambda: pid.exists() and bool(pid.read_text()), 60)
    assert not lives(int(pid.read_text()))
    assert [log["event"] for log in logs] == ["killed a child process that did not stop in time"]


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
