"""Jobs for the workers, the workers themselves, and the jobs that a worker refused.

A job is written in the transaction of the state that needs it and is done under a lease. A worker that claims
a job gets a token. Only the newest token can renew the lease or finish the job, so a worker that comes back
after its lease expired changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypedDict, Unpack

from sqlalchemy import bindparam, delete, func, insert, or_, select, update

from services.domain.jobs import Job, JobKind, JobState, Refusal, Worker, WorkerIdentity
from services.storage.sql import Repository, as_dataclass, change_where, new_id, with_values
from services.storage.tables import job_refusals, jobs, workers

MAX_ATTEMPTS = 3

_ADD = insert(jobs)
_JOB = with_values(select(jobs), jobs.c.job_id)
_CLAIM = (
    change_where(jobs, jobs.c.job_id)
    .where(jobs.c.state == JobState.WAITING)
    .values(state=JobState.LEASED, attempts=jobs.c.attempts + 1, token=jobs.c.token + 1)
    .values(lease_expires_at=bindparam("until"))
)
_UNDER_LEASE = change_where(jobs, jobs.c.job_id, jobs.c.token).where(jobs.c.state == JobState.LEASED)
_EXPIRED = (
    select(jobs)
    .where(jobs.c.state == JobState.LEASED, jobs.c.lease_expires_at <= bindparam("now"))
    .order_by(jobs.c.serial)
)
_UNPUBLISHED = jobs.c.published_at.is_(None)
_TO_PUBLISH = (
    select(jobs)
    .where(
        jobs.c.state == JobState.WAITING,
        or_(_UNPUBLISHED, jobs.c.published_at <= bindparam("published_before")),
    )
    .order_by(_UNPUBLISHED.desc(), jobs.c.serial)
    .limit(bindparam("most"))
)
_OLDEST_UNPUBLISHED = select(func.min(jobs.c.created_at)).where(
    jobs.c.state == JobState.WAITING, _UNPUBLISHED
)


class _Waiting(TypedDict, total=False):
    state: JobState
    lease_expires_at: datetime | None
    published_at: None


class _JobChange(_Waiting, total=False):
    """Columns of a job to be set."""

    attempts: int
    finished_at: datetime
    error: str


_WAITING_AGAIN: _Waiting = {"state": JobState.WAITING, "lease_expires_at": None, "published_at": None}


class Jobs(Repository):
    """The jobs in a database."""

    def add(
        self,
        kind: JobKind,
        subject: Mapping[str, str],
        *,
        task_serial: int,
        now: datetime,
        round_serial: int | None = None,
    ) -> Job:
        """Add a job; workers see it when the transaction commits."""
        job_id = new_id("job")
        row = {
            "job_id": job_id,
            "kind": kind,
            "state": JobState.WAITING,
            "task_serial": task_serial,
            "round_serial": round_serial,
            "subject": dict(subject),
            "subject_key": f"{kind.value}:" + ",".join(subject.values()),
            "attempts": 0,
            "max_attempts": MAX_ATTEMPTS,
            "token": 0,
            "created_at": now,
        }
        self._connection.execute(_ADD, row)
        return as_dataclass(Job, self._connection.execute(_JOB, {"job_id": job_id}).one())

    def get(self, job_id: str) -> Job | None:
        """One job."""
        return self._find(Job, _JOB, job_id=job_id)

    def claim(self, job_id: str, now: datetime, lease: timedelta) -> Job | None:
        """Claim a waiting job; none if another worker has it or it has ended."""
        taken = self._connection.execute(_CLAIM, {"of_job_id": job_id, "until": now + lease})
        return self.get(job_id) if taken.rowcount else None

    def renew(self, claimed: Job, now: datetime, lease: timedelta) -> bool:
        """Renew the lease of a claimed job; false if the lease was lost."""
        return self._under_lease(claimed, lease_expires_at=now + lease)

    def finish(self, claimed: Job, now: datetime) -> bool:
        """Mark a claimed job as done, in the transaction of its result; false if the lease was lost."""
        return self._under_lease(claimed, state=JobState.DONE, lease_expires_at=None, finished_at=now)

    def put_back(self, claimed: Job, error: str) -> bool:
        """Put a failed job back for a retry; false if the lease was lost."""
        return self._under_lease(claimed, **_WAITING_AGAIN, error=error)

    def hand_back(self, claimed: Job) -> bool:
        """Put a claimed job back without counting the attempt; false if the lease was lost."""
        return self._under_lease(claimed, **_WAITING_AGAIN, attempts=claimed.attempts - 1)

    def give_up(self, claimed: Job, error: str, now: datetime) -> bool:
        """Mark a claimed job as failed; false if the lease was lost."""
        return self._under_lease(
            claimed, state=JobState.FAILED, lease_expires_at=None, finished_at=now, error=error
        )

    def expired(self, now: datetime) -> list[Job]:
        """Leased jobs whose lease has expired."""
        return self._list(Job, _EXPIRED, now=now)

    def to_publish(self, now: datetime, again_after: timedelta, most: int) -> list[Job]:
        """Waiting jobs to publish: unpublished ones first, then old ones whose message may be lost."""
        due = {"published_before": now - again_after, "most": most}
        return self._list(Job, _TO_PUBLISH, **due)

    def mark_published(self, job_ids: Sequence[str], now: datetime) -> None:
        """Record that the messages of these jobs were published."""
        waiting = (jobs.c.job_id.in_(job_ids)) & (jobs.c.state == JobState.WAITING)
        self._connection.execute(update(jobs).where(waiting).values(published_at=now))

    def mark_unpublished(self, job_ids: Sequence[str]) -> None:
        """Have the waiting ones of these jobs published again."""
        waiting = (jobs.c.job_id.in_(job_ids)) & (jobs.c.state == JobState.WAITING)
        self._connection.execute(update(jobs).where(waiting).values(published_at=None))

    def cancel(self, *, task_serial: int | None = None, round_serial: int | None = None) -> None:
        """Cancel the unfinished jobs of a task or a round; a worker that runs one loses its lease."""
        unfinished = jobs.c.state.in_((JobState.WAITING, JobState.LEASED))
        of = (
            jobs.c.task_serial == task_serial if round_serial is None else jobs.c.round_serial == round_serial
        )
        self._connection.execute(
            update(jobs).where(unfinished, of).values(state=JobState.CANCELLED, lease_expires_at=None)
        )

    def oldest_unpublished(self) -> datetime | None:
        """The creation time of the oldest job that is not published."""
        oldest: datetime | None = self._connection.execute(_OLDEST_UNPUBLISHED).scalar_one()
        return oldest

    def _under_lease(self, claimed: Job, **change: Unpack[_JobChange]) -> bool:
        claim = {"of_job_id": claimed.job_id, "of_token": claimed.token}
        return bool(self._connection.execute(_UNDER_LEASE, {**claim, **change}).rowcount)


_REPORT = change_where(workers, workers.c.worker_id)
_LIVE = select(workers).where(workers.c.expires_at > bindparam("now")).order_by(workers.c.host, workers.c.pid)
_REFUSAL = with_values(select(job_refusals), job_refusals.c.job_id, job_refusals.c.worker_id)
_OF_JOB = with_values(select(job_refusals.c.worker_id), job_refusals.c.job_id)
_STANDING = (
    select(job_refusals)
    .where(job_refusals.c.expires_at > bindparam("now"))
    .order_by(job_refusals.c.refused_at.desc())
    .limit(bindparam("most"))
)
_REFUSE_AGAIN = change_where(job_refusals, job_refusals.c.job_id, job_refusals.c.worker_id)
_MAX_STANDING = 1000


class Workers(Repository):
    """The workers in a database."""

    def report(
        self, identity: WorkerIdentity, problems: Sequence[str], now: datetime, expires_at: datetime
    ) -> None:
        """Store the heartbeat of a worker, and the problems of its host."""
        values = {"problems": list(problems), "seen_at": now, "expires_at": expires_at}
        changed = self._connection.execute(_REPORT, {"of_worker_id": identity.worker_id, **values})
        if not changed.rowcount:
            row = vars(identity) | {"queues": list(identity.queues), "started_at": now}
            self._connection.execute(insert(workers), row | values)

    def live(self, now: datetime) -> list[Worker]:
        """The workers whose heartbeat has not expired, sorted by host."""
        return self._list(Worker, _LIVE, now=now)

    def remove(self, worker_id: str) -> None:
        """Delete a worker that has stopped."""
        self._connection.execute(delete(workers).where(workers.c.worker_id == worker_id))

    def delete_before(self, moment: datetime) -> None:
        """Delete workers and refusals that expired before this time."""
        self._connection.execute(delete(workers).where(workers.c.expires_at < moment))
        self._connection.execute(delete(job_refusals).where(job_refusals.c.expires_at < moment))


class Refusals(Repository):
    """The refusals in a database."""

    def add(self, job_id: str, worker_id: str, error: str, now: datetime, expires_at: datetime) -> None:
        """Store the refusal of a job by a worker; replaces an earlier one."""
        values = {"error": error, "refused_at": now, "expires_at": expires_at}
        again = self._connection.execute(
            _REFUSE_AGAIN, {"of_job_id": job_id, "of_worker_id": worker_id, **values}
        )
        if not again.rowcount:
            self._connection.execute(
                insert(job_refusals), {"job_id": job_id, "worker_id": worker_id, **values}
            )

    def get(self, job_id: str, worker_id: str) -> Refusal | None:
        """The refusal of a job by a worker, even if it has expired."""
        found = {"job_id": job_id, "worker_id": worker_id}
        return self._find(Refusal, _REFUSAL, **found)

    def refused_by(self, job_id: str) -> set[str]:
        """The ids of all workers that have refused a job, including expired refusals."""
        return set(self._connection.execute(_OF_JOB, {"job_id": job_id}).scalars())

    def standing(self, now: datetime) -> list[Refusal]:
        """The refusals that have not expired, newest first."""
        return self._list(Refusal, _STANDING, now=now, most=_MAX_STANDING)
