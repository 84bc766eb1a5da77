"""What a step of the protocol left behind in its transaction."""

from datetime import timedelta

from services.domain.jobs import Job, JobKind
from services.storage.database import UnitOfWork
from tests.integration.storage.factories import NOW, SECOND

LEASE = timedelta(seconds=30)


def event_kinds(uow: UnitOfWork) -> list[str]:
    """The kinds of all events so far, oldest first."""
    uow.events.write()
    return [event.kind for event in uow.events.after(0, 10_000)]


def waiting_jobs(uow: UnitOfWork) -> list[JobKind]:
    """The kinds of the jobs that wait for a worker, oldest first."""
    return [job.kind for job in uow.jobs.to_publish(NOW, SECOND, 100)]


def claimed_job(uow: UnitOfWork, kind: JobKind) -> Job:
    """The oldest waiting job of a kind, under a lease."""
    waiting = next(job for job in uow.jobs.to_publish(NOW, SECOND, 100) if job.kind is kind)
    claimed = uow.jobs.claim(waiting.job_id, NOW, LEASE)
    assert claimed is not None
    return claimed


def lost_lease(uow: UnitOfWork, claimed: Job) -> None:
    """Let another worker have the job."""
    assert uow.jobs.put_back(claimed, "the lease expired")
    assert uow.jobs.claim(claimed.job_id, NOW, LEASE) is not None
