"""Start the frameworks that are compared in training, each in its own process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Protocol

from benchmarks.peers.turns import Times, Turn

_REPOSITORY = Path(__file__).parents[1]
_PEERS = Path(__file__).parent / "peers"
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's actors import modules of this repository.
    "PYTHONPATH": str(_REPOSITORY),
}
_EXIT_TIMEOUT_S = 60

BARE = ("-m", "benchmarks.peers.bare_training")
BARE_HOSTING = ("-m", "benchmarks.peers.bare_hosting")
FLOWER = ("-m", "benchmarks.peers.flower_training")
PFL = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "benchmarks.peers.pfl_training"),
)


class Contender(Protocol):
    """A framework that runs rounds."""

    def do_round(self, turn: Turn) -> Times:
        """Run a round with all clients."""


class Child:
    """A framework in a child process, controlled through a pipe."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def do_round(self, turn: Turn) -> Times:
        """Request a round and wait for its result."""
        turns, answers = _pipes(self._process)
        turns.write(json.dumps(asdict(turn)) + "\n")
        turns.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} has ended:\n{self._log.read_text()[-3000:]}")
        return Times(**json.loads(line))


@contextmanager
def child(python: Path | str, arguments: Sequence[str]) -> Iterator[Child]:
    """Start a child process; it ends when its input is closed."""
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as folder:
        log = Path(folder) / "log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(  # noqa: S603
                [python, *arguments],
                cwd=_REPOSITORY,
                env=os.environ | _QUIET,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield Child(process, log)
            finally:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    turns, _ = _pipes(process)
    turns.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the whole session


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin, "the process has pipes"
    assert process.stdout, "the process has pipes"
    return process.stdin, process.stdout


def peer_python(name: str, folder: Path) -> Path:
    """The Python of a framework's virtual environment, which is created in ``folder`` if missing."""
    environment = folder / name
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)  # noqa: S603
    requirements = _PEERS / f"requirements-{name}.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)  # noqa: S603
    return python
