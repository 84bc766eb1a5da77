"""Starts API processes that can be killed at a commit, and starts them again on the same data."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.running_service import OPERATOR_KEY


class CrashingService:
    """One service, in one process after another, always on the same data."""

    def __init__(self, server: subprocess.Popen[str], data_dir: Path, database_url: str) -> None:
        self.database_url = database_url
        self.model_store = data_dir / "models"
        self._server = server
        self._armed = data_dir / "armed"
        self._settings = {
            "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
            "FEDCS_PORT": "0",
            "FEDCS_DATA_DIR": str(data_dir),
            "FEDCS_DATABASE_URL": database_url,
            "FEDCS_MIN_FREE_DISK_BYTES": "0",
        }

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """The service as it is; it ends in peace, so that the next reconciler need not wait for its lease."""
        process, url = self._start(None)
        try:
            with _connect(url) as client:
                yield client
        finally:
            os.kill(process, signal.SIGTERM)
            self._read_end()

    @contextmanager
    def dying(self, kind: str, when: str) -> Iterator[httpx.Client]:
        """The service that, once armed, dies before or after the commit that tells of such an event."""
        self._armed.unlink(missing_ok=True)
        process, url = self._start({"kind": kind, "when": when, "armed": str(self._armed)})
        try:
            with _connect(url) as client:
                yield client
        except BaseException:
            os.kill(process, signal.SIGKILL)
            raise
        finally:
            ended = self._read_end()
        assert ended == -signal.SIGKILL, f"it did not die at its commit, but ended with {ended}"

    def arm(self) -> None:
        """From now on it dies where it was told to."""
        self._armed.touch()

    def _start(self, crash: dict[str, str] | None) -> tuple[int, str]:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"settings": self._settings, "crash": crash}) + "\n")
        self._server.stdin.flush()
        word, process, url = self._read_line().split()
        assert word == "Ready"
        return int(process), url

    def _read_end(self) -> int:
        word, status = self._read_line().split()
        assert word == "Ended"
        return int(status)

    def _read_line(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()


@contextmanager
def crash_point_server(log: Path) -> Iterator[subprocess.Popen[str]]:
    """Where the processes come from; what they log goes to a file."""
    command = [sys.executable, "-m", "tests.faults.crash_point_server"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as server,
    ):
        yield server


def _connect(url: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    return httpx.Client(base_url=url, headers=headers, timeout=30)
