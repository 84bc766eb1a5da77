"""A job under a lease: taken, renewed with a word on how far it is, handed back when a worker stops."""

from datetime import datetime, timedelta
from typing import Any

from services.domain.jobs import Job
from services.protocol.ports import Store

LEASE = timedelta(seconds=20)
"""A worker that is not heard of for so long is taken for dead."""
RENEW_EVERY_S = 5.0


def claim_job(store: Store, job_id: str, now: datetime) -> Job | None:
    """Take a waiting job; none if somebody else has it or it is over."""
    claimed = store.jobs.claim(job_id, now, LEASE)
    if claimed is not None:
        _tell(store, "job.started", claimed, now)
    return claimed


def renew_job(store: Store, claimed: Job, done: float, now: datetime) -> bool:
    """Hold on to a claimed job, and tell which part of it is done; false if it is no longer ours."""
    if not store.jobs.renew(claimed, now, LEASE):
        return False
    _tell(store, "job.progress", claimed, now, done=round(done, 3))
    return True


def hand_back_job(store: Store, claimed: Job, now: datetime) -> bool:
    """Let another worker do a claimed job: this one stops. It does not count as an attempt."""
    if not store.jobs.hand_back(claimed):
        return False
    _tell(store, "job.handed_back", claimed, now)
    return True


def tell_failure(store: Store, failed: Job, error: str, now: datetime) -> None:
    """Record that an attempt failed."""
    _tell(store, "job.failed", failed, now, error=error)


def _tell(store: Store, kind: str, job: Job, now: datetime, **data: Any) -> None:
    store.events.record(
        kind,
        now,
        task_id=store.tasks.id_of(job.task_serial),
        round_id=None if job.round_serial is None else store.rounds.id_of(job.round_serial),
        job_id=job.job_id,
        job=job.kind.value,
        subject=dict(job.subject),
        attempt=job.attempts,
        **data,
    )
