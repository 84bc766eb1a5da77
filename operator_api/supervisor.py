"""Supervises a child process: restarts it when it exits, and stops it with this process.

``python -m operator_api.supervisor PARENT_PID COMMAND...`` runs a program that gets SIGTERM when its parent
process ends, even if the parent is killed (PR_SET_PDEATHSIG). On Linux only; elsewhere the program just runs.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType

import structlog

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 5.0
_QUICK_EXIT_S = 30.0
"""A program that ends sooner than this after its start may not be able to run at all."""
_QUICK_EXITS_BEFORE_ERROR = 5
_PR_SET_PDEATHSIG = 1
_STOP_TIMEOUT_S = 15.0
"""The time to stop after SIGTERM."""

_NOT_INHERITED = frozenset({"FEDCS_OPERATOR_KEY"})
"""Variables that the program does not get: only the API needs the key."""

_log = structlog.get_logger(__name__)


class Supervised:
    """A program that runs as long as this context is open.

    It has its own process group, so that Ctrl-C reaches only this process, which then stops it. The thread
    that starts it lives as long as it does, because PR_SET_PDEATHSIG is bound to the parent thread.
    """

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "operator_api.supervisor", str(os.getpid()), *command]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = Event()
        self._ended = Event()  # an interrupted join() would take the thread for ended
        self._starting = Lock()
        self._thread = Thread(target=self._run, name=f"supervision of {name}", daemon=True)

    def __enter__(self) -> "Supervised":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send SIGTERM, then SIGKILL after a time-out or a second signal to this process."""
        with self._starting:
            self._stopping.set()
        if self._process:
            self._process.terminate()
        try:
            self._ended.wait(_STOP_TIMEOUT_S)
        finally:
            if not self._ended.is_set():
                _log.warning("killed a child process that did not stop in time", process=self._name)
                self._kill_group()
                self._ended.wait()

    def _run(self) -> None:
        try:
            self._restart_until_stopped()
        finally:
            self._ended.set()

    def _restart_until_stopped(self) -> None:
        quick_exits = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            end = self._run_once()
            if self._stopping.is_set():
                return
            quick_exits = quick_exits + 1 if time.monotonic() - started < _QUICK_EXIT_S else 0
            pause_s = min(_FIRST_PAUSE_S * 2 ** max(quick_exits - 1, 0), _MAX_PAUSE_S)
            log = _log.bind(process=self._name, end=end, pause_s=pause_s)
            if quick_exits < _QUICK_EXITS_BEFORE_ERROR:
                log.warning("a child process exited and is restarted")
            else:
                log.error("a child process exits repeatedly")
            self._stopping.wait(pause_s)

    def _run_once(self) -> str:
        """Run it until it ends; how it ended."""
        try:
            with self._starting:
                if self._stopping.is_set():
                    return "not started"
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    self._command,
                    env=_inherited() | self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno(),
                    start_new_session=True,
                )
        except OSError as error:
            return f"not started: {error}"
        code = self._process.wait()
        self._kill_group()  # what it started itself and left behind
        return f"exit code {code}"

    def _kill_group(self) -> None:
        if self._process:
            with suppress(ProcessLookupError, PermissionError):  # the latter is what macOS says of ended ones
                os.killpg(self._process.pid, signal.SIGKILL)


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def main() -> None:
    """Ask the kernel for SIGTERM when the parent dies, then execute the program."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
