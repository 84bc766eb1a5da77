"""Workers that get bursts of SIGTERM, and stacks that are killed, while they train: each run goes on after.

``python -m tests.faults.worker_signals --bursts 200 --kills 50`` takes an hour or more; the suite has a
sample. Each stop hits the training of a round, which the next worker or stack has to finish. The moments are
drawn by ``--seed``.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any

import httpx
from sqlalchemy import func, select

from services.domain.jobs import JobState
from services.storage.database import Database
from services.storage.tables import jobs
from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.faults.tiny_network import TINY
from tests.integration.rounds_setup import eventually
from tests.running_stack import running_stack
from tests.running_up import processes_of, running_up
from tests.stateful.consistency import check_consistency

SIGNALS = 3
PAUSE_S = 0.0003
PATIENCE_S = 300.0
_TERMS: dict[str, Any] = {
    "model": TINY,
    "local_epochs": 30,
    "batch_size": 20,
    "learning_rate": 0.05,
    "seed": 5,
}
_SAMPLES = [2000, 1500, 1000]
"""With so many, a training takes about a second."""
_SETTINGS: dict[str, Any] = {"job_lease_s": "3", "retry_pause_s": "0.5", "republish_after_s": "1"}


@dataclass
class Training:
    """A task that goes on from one worker or stack to the next, round by round."""

    cell: HostedCell | None = None
    opened: dict[str, Any] | None = None
    rounds: int = 0
    stop_s: list[float] = field(default_factory=list)
    """How long each stop took."""

    def go_on(self, service: httpx.Client) -> None:
        """Finish the round under way, and begin another."""
        if self.cell is None:
            self.cell = hosted_cell(service, _SAMPLES)
            assert self.cell.start_task(**_TERMS)["state"] == "ready"
        self.cell.service = service
        self.finish_round()
        self.opened = self.cell.begin_round()

    def finish_round(self) -> None:
        """Have the round under way aggregated."""
        assert self.cell is not None
        if self.opened is not None:
            over = self.cell.finish_round(self.opened)
            assert over["state"] == "aggregated", over
            assert over["received"] == len(_SAMPLES), over
            self.rounds += 1
            self.opened = None

    def stopped(self, at: float) -> None:
        """Note how long a stop took that was asked for at this moment."""
        self.stop_s.append(time.monotonic() - at)

    def describe(self) -> str:
        """The figures of a run."""
        ordered = sorted(self.stop_s)
        return (
            f"{len(ordered)} stops, {self.rounds} rounds aggregated; "
            f"a stop took {ordered[len(ordered) // 2]:.2f} s (median), {ordered[-1]:.2f} s (longest)"
        )


def burst(pid: int) -> None:
    """Send SIGTERM several times, a fraction of a millisecond apart."""
    for _ in range(SIGNALS):
        os.kill(pid, signal.SIGTERM)
        time.sleep(PAUSE_S)


def stop_workers(directory: Path, bursts: int, seed: int, say: Callable[[str], None] = print) -> Training:
    """Stop one worker after another by a burst in the middle of a round."""
    rng = Random(seed)
    training = Training()
    database = Database(f"sqlite:///{directory}/fedcs.sqlite")
    settings = _SETTINGS | {"job_lease_s": "60"}  # workers return their jobs, so no lease should expire
    with running_stack(directory, allowed_imports="tests.faults", **settings) as stack:
        for number in range(bursts):
            with stack.worker("--processes", "2") as worker:
                training.go_on(stack.service)
                _wait_for_work(database)
                time.sleep(rng.uniform(0, 0.5))
                processes = [worker.pid, *_children(worker)]
                began = time.monotonic()
                burst(worker.pid)
                assert worker.wait(PATIENCE_S) == 0, "it stops as if there had been one signal"
                training.stopped(began)
            assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()], "no process is left"
            say(f"burst {number + 1}: stopped in {training.stop_s[-1]:.2f} s")
        with stack.worker("--processes", "2"):
            training.finish_round()
            _wait_for_rest(database)
        _check_jobs(database, most_attempts=1)
    check_consistency(database)
    database.close()
    return training


def kill_stacks(directory: Path, kills: int, seed: int, say: Callable[[str], None] = print) -> Training:
    """Kill one ``fedcs up`` after another in the middle of a round."""
    rng = Random(seed)
    training = Training()
    settings = {f"FEDCS_{name.upper()}": value for name, value in _SETTINGS.items()}
    database = Database(f"sqlite:///{directory}/data/fedcs.sqlite")
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        settings |= {"TMPDIR": temporary, "FEDCS_ALLOWED_IMPORTS": "tests.faults"}
        for number in range(kills):
            with running_up(directory, **settings) as up:
                assert len(list(Path(temporary).iterdir())) == 1, "what was left behind is gone"
                training.go_on(up.service)
                _wait_for_work(database)
                time.sleep(rng.uniform(0, 0.5))
                began = time.monotonic()
                up.process.kill()
                eventually(lambda: not processes_of(up.environment), PATIENCE_S)
                training.stopped(began)
            say(f"kill {number + 1}: all processes ended in {training.stop_s[-1]:.2f} s")
        with running_up(directory, **settings) as up:
            assert training.cell is not None
            training.cell.service = up.service
            training.finish_round()
            _wait_for_rest(database)
        _check_jobs(database, most_attempts=2)
    check_consistency(database)
    database.close()
    return training


def _wait_for_work(database: Database) -> None:
    """Return when a worker has a job."""
    eventually(lambda: _count(database, JobState.LEASED), PATIENCE_S)


def _wait_for_rest(database: Database) -> None:
    """Return when nothing is left to do."""
    eventually(lambda: not _count(database, JobState.LEASED, JobState.WAITING), PATIENCE_S)


def _count(database: Database, *states: JobState) -> int:
    with database.engine.connect() as connection:
        query = select(func.count()).select_from(jobs).where(jobs.c.state.in_(states))
        return int(connection.execute(query).scalar_one())


def _check_jobs(database: Database, most_attempts: int) -> None:
    """Every job is done, and none was given up and begun again too often."""
    with database.engine.connect() as connection:
        found = connection.execute(select(jobs.c.state, jobs.c.attempts)).all()
    assert {state for state, _ in found} == {JobState.DONE}
    assert max(attempts for _, attempts in found) <= most_attempts


def _children(worker: "Popen[str]") -> list[int]:
    listed = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def main() -> None:
    """Run both, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bursts", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="worker-signals-") as name:
        for folder, run, number in (
            ("bursts", stop_workers, asked.bursts),
            ("kills", kill_stacks, asked.kills),
        ):
            if number:
                directory = Path(name) / folder
                directory.mkdir()
                print(f"{folder}: {run(directory, number, asked.seed).describe()}", flush=True)


if __name__ == "__main__":
    main()
