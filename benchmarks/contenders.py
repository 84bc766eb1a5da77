"""The contenders in training, each in processes of its own, doing a round whenever it is its turn."""

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
    # Ray's actors find this repository's modules by it.
    "PYTHONPATH": str(_REPOSITORY),
}
_LONGEST_GOODBYE_S = 60

BARE = ("-m", "benchmarks.peers.bare_training")
BARE_HOSTING = ("-m", "benchmarks.peers.bare_hosting")
FLOWER = ("-m", "benchmarks.peers.flower_training")
PFL = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "benchmarks.peers.pfl_training"),
)


class Contender(Protocol):
    """Whoever does rounds."""

    def do_round(self, turn: Turn) -> Times:
        """One round of all clients."""


class Child:
    """A contender that reads its turns from a pipe."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def do_round(self, turn: Turn) -> Times:
        """Ask for a round, and wait for it."""
        turns, answers = _pipes(self._process)
        turns.write(json.dumps(asdict(turn)) + "\n")
        turns.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} has ended:\n{self._log.read_text()[-3000:]}")
        return Times(**json.loads(line))


@contextmanager
def child(python: Path | str, arguments: Sequence[str]) -> Iterator[Child]:
    """Start a contender; it ends when its turns do."""
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
        process.wait(_LONGEST_GOODBYE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the whole session that was started for it


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin, "it was started with pipes"
    assert process.stdout, "it was started with pipes"
    return process.stdin, process.stdout


def peer_python(name: str, folder: Path) -> Path:
    """The Python of a peer's own environment, which is made in ``folder`` if it is not there."""
    environment = folder / name
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)  # noqa: S603
    requirements = _PEERS / f"requirements-{name}.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", requirements], check=True)  # noqa: S603
    return python
