"""A worker without its data sets beside one that has them: every task is finished all the same.

``python -m tests.faults.bad_worker --tasks 10 --rounds 5`` takes some minutes; the suite has a sample.
"""

import argparse
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select

from services.storage.database import Database
from services.storage.tables import events
from tests.e2e.hosted_cell import PATIENCE_S, hosted_cell
from tests.integration.rounds_setup import eventually
from tests.running_stack import Stack, running_stack
from tests.stateful.consistency import check_consistency

OWN = "tests.e2e.custom_learning"
_ROUND_S = 3600
_SAMPLES = [40, 30, 20]


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    states: list[str]
    """Of the tasks."""
    refused: int
    """How often the bad worker put a job back."""
    failed: int
    """How many attempts at jobs failed."""


def train_beside_a_bad_worker(
    directory: Path, tasks: int, rounds: int, say: Callable[[str], None] = print
) -> Outcome:
    """Have two workers do so many tasks, one of which cannot read the data set."""
    (directory / "datasets").mkdir()
    (directory / "datasets" / "centres.txt").write_text("0 0  3 0  0 3")
    settings = {"allowed_imports": OWN, "heartbeat_s": "0.5"}
    with (
        running_stack(directory) as stack,
        stack.worker("--processes", "1", datasets=str(directory / "nowhere"), **settings),
        stack.worker("--processes", "1", datasets=str(directory / "datasets"), **settings),
    ):
        eventually(lambda: _is_degraded(stack, str(directory / "nowhere")), PATIENCE_S)
        states = []
        for number in range(tasks):
            states.append(_run_task(stack, rounds))
            say(f"task {number + 1}: {states[-1]}")
        assert _is_degraded(stack, str(directory / "nowhere"))
    database = Database(f"sqlite:///{directory}/fedcs.sqlite")
    check_consistency(database)
    outcome = Outcome(states, _count(database, "job.refused"), _count(database, "job.failed"))
    database.close()
    return outcome


def _run_task(stack: Stack, rounds: int) -> str:
    """Play so many rounds, after which the time of the task is over; its state then."""
    cell = hosted_cell(stack.service, _SAMPLES)
    task = cell.start_task(
        model=f"{OWN}:Line",
        dataset=f"{OWN}:points",
        round_deadline_s=_ROUND_S,
        final_deadline_s=rounds * _ROUND_S,
    )
    assert task["state"] == "ready", task
    for _ in range(rounds):
        over = cell.finish_round(cell.begin_round())
        assert over["state"] == "aggregated", over
    cell.evaluated(rounds)
    state: str = cell.task_in("finished", "failed")["state"]
    return state


def _is_degraded(stack: Stack, folder: str) -> bool:
    """Whether the service says which host lacks this folder."""
    ready = stack.service.get("/readyz").json()
    said: str = ready["checks"]["workers"]
    return ready["status"] == "degraded" and said.startswith(f"{socket.gethostname()} ") and folder in said


def _count(database: Database, kind: str) -> int:
    with database.engine.connect() as connection:
        query = select(func.count()).select_from(events).where(events.c.kind == kind)
        return int(connection.execute(query).scalar_one())


def main() -> None:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bad-worker-") as name:
        print(train_beside_a_bad_worker(Path(name), asked.tasks, asked.rounds))


if __name__ == "__main__":
    main()
