"""Processes that are started again whenever they end, as a supervisor of services does."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.fork_server import ModulePopen

_LOOK_S = 0.05
_PAUSE_S = 0.5
"""Between an end that nobody ordered and the next start."""


class SupervisedProcess:
    """One process with its children, life after life."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        user: str | None = None,
    ) -> None:
        self.name = name
        self.starts = 0
        self.next_skew_s = 0.0
        """How wrong the clock will be in the next life."""
        self._command = list(command)
        self._log = log
        self._environment = dict(environment)
        self._user = user
        is_ours = self._command[:2] == [sys.executable, "-m"]
        self._start: type[subprocess.Popen[bytes]] = ModulePopen if is_ours else subprocess.Popen
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Live, for ever."""
        while True:
            await self._may_start.wait()
            await self._live()
            await asyncio.sleep(_PAUSE_S)

    async def down_for(self, duration_s: float) -> None:
        """Be killed with all children, whatever they do, and stay away for so long."""
        self._may_start.clear()
        try:
            self.signal(signal.SIGKILL)
            await asyncio.sleep(duration_s)
        finally:
            self._may_start.set()

    async def frozen_for(self, duration_s: float) -> None:
        """Stand still, children too, and then go on as if nothing had been."""
        frozen = self.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(duration_s)
        finally:
            for pid in frozen:
                _send(pid, signal.SIGCONT)

    def signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the process and all of its children; who got it."""
        pids = [] if self._process is None else family(self._process.pid)
        for pid in pids:
            _send(pid, number)
        return pids

    @property
    def pid(self) -> int | None:
        """Of the process itself, while it lives."""
        return None if self._process is None else self._process.pid

    async def _live(self) -> None:
        skew = {"FEDCS_TEST_SKEW_S": str(self.next_skew_s)} if self.next_skew_s else {}
        self.next_skew_s = 0.0
        with self._log.open("ab") as log:
            self._process = self._start(
                self._command,
                env=os.environ | self._environment | skew,
                stdout=log,
                stderr=log,
                user=self._user,
                start_new_session=True,
            )
        self.starts += 1
        try:
            while self._process.poll() is None:
                await asyncio.sleep(_LOOK_S)
        finally:
            self.signal(signal.SIGKILL)  # what it leaves behind, or all of it if nobody wants it any more
            self._process.wait()
            self._process = None


def family(pid: int) -> list[int]:
    """A process and all that descend from it, the oldest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(descendant for child in children for descendant in family(int(child)))]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
