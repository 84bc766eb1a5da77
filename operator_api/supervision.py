"""Keeps another program running beside this one: starts it again when it ends, and ends it with us."""

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

_PAUSE_S = 1.0
_LONG_PAUSE_S = 60.0
_QUICK_DEATH_S = 30.0
_MOST_QUICK_DEATHS = 5
_PATIENCE_S = 15.0
"""How long it may take to end when asked to."""

_log = structlog.get_logger(__name__)


class Supervised:
    """A program that runs as long as this context is open.

    It has a process group of its own, so that Ctrl-C reaches us alone and we say when it ends. It is started
    by a thread that lives as long as it does, because the leash is held by the thread, not by the process.
    """

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "operator_api.leash", str(os.getpid()), *command]
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
        """Ask it to end, and end it if it does not; or if we are asked a second time to end ourselves."""
        with self._starting:
            self._stopping.set()
        if self._process:
            self._process.terminate()
        try:
            self._ended.wait(_PATIENCE_S)
        finally:
            if not self._ended.is_set():
                _log.warning("a process had to be killed", process=self._name)
                self._kill_group()
                self._ended.wait()

    def _run(self) -> None:
        try:
            self._run_again_and_again()
        finally:
            self._ended.set()

    def _run_again_and_again(self) -> None:
        quick_deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            end = self._run_once()
            if self._stopping.is_set():
                return
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_DEATH_S else 0
            if quick_deaths < _MOST_QUICK_DEATHS:
                _log.warning("a process ended and is started again", process=self._name, end=end)
                self._stopping.wait(_PAUSE_S)
            else:
                _log.error("a process ends again and again", process=self._name, end=end)
                self._stopping.wait(_LONG_PAUSE_S)

    def _run_once(self) -> str:
        """Run it until it ends; how it ended."""
        try:
            with self._starting:
                if self._stopping.is_set():
                    return "not started"
                self._process = subprocess.Popen(  # noqa: S603 - our own command
                    self._command,
                    env=os.environ | self._environment,
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
