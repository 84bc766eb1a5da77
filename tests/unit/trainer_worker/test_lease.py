"""A lease is renewed while the work goes on, and only then; a process whose work hangs ends."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from services.domain.jobs import Job, JobKind
from services.settings import WorkerSettings
from services.storage.database import Database
from services.storage.migration import migrate
from tests.integration.storage import factories
from trainer_worker.lease import Lease, LeaseLostError, StopFlag, WorkerStopsError

LEASE_S = 0.4


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    migrate(database)
    return database


@pytest.fixture
def claimed(database: Database) -> Job:
    with database.unit_of_work() as uow:
        now = database.now()
        task = uow.tasks.add(factories.terms(), now)
        job = uow.jobs.add(JobKind.INITIALIZE_MODEL, {"of": "it"}, task_serial=task.serial, now=now)
        found = uow.jobs.claim(job.job_id, now, timedelta(seconds=LEASE_S))
        uow.commit()
    database.close()  # the tests fork
    assert found is not None
    return found


def make_lease(
    database: Database, claimed: Job, stopping: StopFlag, *, progress_timeout_s: float = 600
) -> Lease:
    settings = WorkerSettings(
        broker_url="redis://nowhere", job_lease_s=LEASE_S, progress_timeout_s=progress_timeout_s
    )
    return Lease(settings, database, claimed, stopping)


def exit_code_of(work: Callable[[], None]) -> int:
    """How a process that does this ends."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def expires_at(database: Database, claimed: Job) -> object:
    with database.reading() as store:
        found = store.jobs.get(claimed.job_id)
    assert found is not None
    return found.lease_expires_at


def test_it_is_renewed_while_the_work_makes_progress(database: Database, claimed: Job) -> None:
    lease = make_lease(database, claimed, StopFlag())
    with lease.held():
        lease.wait(3 * LEASE_S)
    with database.reading() as store:
        assert [job.job_id for job in store.jobs.expired(database.now() - timedelta(seconds=LEASE_S))] == []
        assert expires_at(database, claimed) != claimed.lease_expires_at


def test_work_that_hangs_ends_with_its_process(database: Database, claimed: Job) -> None:
    def hang() -> None:
        with make_lease(database, claimed, StopFlag(), progress_timeout_s=0.01).held():
            time.sleep(600)

    assert exit_code_of(hang) == 70
    assert expires_at(database, claimed) == claimed.lease_expires_at, "it was not renewed"


def test_work_that_hangs_while_the_worker_stops_ends_with_its_process(
    database: Database, claimed: Job
) -> None:
    stopping = StopFlag()
    stopping.set()

    def hang() -> None:
        with make_lease(database, claimed, stopping).held():
            time.sleep(600)

    assert exit_code_of(hang) == 70
    assert expires_at(database, claimed) == claimed.lease_expires_at, "it was not renewed"


def test_it_is_not_renewed_when_the_main_process_is_gone(database: Database, claimed: Job) -> None:
    def leave_behind() -> None:
        stopping = StopFlag()
        main = os.getpid()
        if not os.fork():
            while os.getppid() == main:
                time.sleep(0.01)
            with make_lease(database, claimed, stopping).held():
                time.sleep(600)
        os._exit(0)

    reading, writing = os.pipe()
    assert exit_code_of(leave_behind) == 0
    os.close(writing)
    assert os.read(reading, 1) == b"", "every process that had the pipe has ended"
    assert expires_at(database, claimed) == claimed.lease_expires_at


def test_the_work_is_told_to_end(database: Database, claimed: Job) -> None:
    stopping = StopFlag()
    lease = make_lease(database, claimed, stopping)
    lease.progress(0.1)
    stopping.set()
    with pytest.raises(WorkerStopsError):
        lease.progress(0.2)


def test_the_work_is_told_that_another_has_the_job(database: Database, claimed: Job) -> None:
    with database.unit_of_work() as uow:
        uow.jobs.hand_back(claimed)
        uow.commit()
    lease = make_lease(database, claimed, StopFlag())
    with pytest.raises(LeaseLostError), lease.held():
        lease.wait(600)
