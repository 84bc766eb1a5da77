"""A stack whose workers can be hit by faults, and a look into its database afterwards."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
from sqlalchemy import Row, select

from services.domain.jobs import Job
from services.storage.database import Database
from services.storage.tables import events, jobs, model_versions, rounds, slots, tasks, trainings, updates
from tests.e2e.hosted_cell import PATIENCE_S, HostedCell, hosted_cell
from tests.faults.tiny_network import TINY
from tests.integration.rounds_setup import eventually
from tests.running_stack import Stack, running_stack
from tests.stateful.consistency import check_consistency

TERMS: dict[str, Any] = {"model": TINY, "local_epochs": 2, "batch_size": 20, "learning_rate": 0.1, "seed": 5}
SAMPLES = [120, 90, 60]
SHORT_TIMES = {"job_lease_s": "3", "retry_pause_s": "0.5", "republish_after_s": "1"}
"""Settings: a fault that costs a lease costs no more than seconds."""


@dataclass(frozen=True)
class Strike:
    """A fault that has happened: to which process, at which job."""

    file: Path
    pid: int
    job_id: str

    def release(self) -> None:
        """Let the process go on: one that lingers, or is frozen."""
        self.file.unlink()
        os.kill(self.pid, signal.SIGCONT)


@dataclass
class FaultyStack:
    """A running stack, its database, and where its faults lie."""

    stack: Stack
    database: Database
    faults: Path

    @property
    def service(self) -> httpx.Client:
        return self.stack.service

    @contextmanager
    def worker(self, *options: str, **settings: str) -> Iterator[Popen[str]]:
        """A worker that faults may befall; what is frozen goes on at the end, or it could not end."""
        module = "tests.faults.crashing_worker"
        with self.stack.worker(*options, module=module, faults=str(self.faults), **settings) as process:
            try:
                yield process
            finally:
                for path in self.faults.glob("*.*"):
                    path.unlink()
                for path in (self.faults / "struck").glob("*.freeze.*"):
                    with suppress(ProcessLookupError):
                        _strike(path).release()

    def arm(self, fault: str, times: int = 1) -> None:
        """Have a fault, such as ``train_client.working.kill``, happen so many times."""
        for path in (self.faults / "struck").glob(f"{fault}.*"):
            path.unlink()
        for number in range(times):
            (self.faults / f"{fault}.{number}").touch()

    def struck(self, fault: str) -> Strike:
        """The first such fault, once it has happened."""

        def look() -> Strike | None:
            return next(map(_strike, sorted((self.faults / "struck").glob(f"{fault}.*"))), None)

        return eventually(look, PATIENCE_S)

    def start(self) -> HostedCell:
        """A cell with a task that has its initial model; each time the same one."""
        cell = self.cell()
        task = cell.start_task(**TERMS)
        assert task["state"] == "ready", task
        return cell

    def cell(self) -> HostedCell:
        return hosted_cell(self.service, SAMPLES)

    def logged(self, job_id: str, *beginnings: str) -> None:
        """Wait until the workers' log has a line about a job that begins in one of these ways."""

        def look() -> bool:
            lines = (self.stack.directory / "worker.log").read_text().splitlines()
            entries = [json.loads(line) for line in lines if f'"job_id": "{job_id}"' in line]
            return any(entry["event"].startswith(beginnings) for entry in entries)

        eventually(look, PATIENCE_S)

    def job(self, job_id: str) -> Job:
        with self.database.reading() as store:
            found = store.jobs.get(job_id)
        assert found is not None
        return found

    def told(self, kind: str, job_id: str) -> list[dict[str, Any]]:
        """The data of the events of a kind about a job."""
        query = select(events.c.data).where(events.c.kind == kind).order_by(events.c.number)
        with self.database.engine.connect() as connection:
            return [data for data in connection.execute(query).scalars() if data["job_id"] == job_id]

    def everything(self) -> dict[str, list[Row[Any]]]:
        """What no worker may change that has lost its lease."""
        with self.database.engine.connect() as connection:
            return {
                table.name: list(connection.execute(select(table)).all())
                for table in (tasks, rounds, slots, updates, trainings, jobs, model_versions, events)
            }


def complete_round(cell: HostedCell) -> bytes:
    """Let the first round of a task run to its end; its model."""
    return complete(cell, cell.begin_round())


def complete(cell: HostedCell, opened: dict[str, Any]) -> bytes:
    """Let an open round run to its end; its model."""
    over = cell.finish_round(opened)
    assert (over["state"], over["received"]) == ("aggregated", len(SAMPLES))
    assert cell.evaluated(1)["model_version"] == 1
    return cell.model(1)


@contextmanager
def faulty_stack(directory: Path, database_url: str, **settings: Any) -> Iterator[FaultyStack]:
    """A stack without workers; when it ends, all that is in its database must be consistent."""
    faults = directory / "faults"
    (faults / "struck").mkdir(parents=True)
    database = Database(database_url)
    with running_stack(
        directory,
        database_url=database_url,
        allowed_imports="tests.faults",
        **(SHORT_TIMES | settings),
    ) as stack:
        yield FaultyStack(stack, database, faults)
    check_consistency(database)
    database.close()


def _strike(path: Path) -> Strike:
    *_, pid, job_id = path.name.split(".")
    return Strike(path, int(pid), job_id)
