"""The work for the trainer: written with the state that needs it, done under a lease.

A worker claims a job and gets a token; only with the newest token can it renew the lease or finish. A worker
that was thought dead and comes back changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from services.domain.jobs import Job, JobKind, JobState
from services.storage.ids import new_id
from services.storage.rows import as_dataclass, change_where, with_values
from services.storage.tables import jobs

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
_UNTOLD = jobs.c.published_at.is_(None)
_TO_PUBLISH = (
    select(jobs)
    .where(jobs.c.state == JobState.WAITING, or_(_UNTOLD, jobs.c.published_at <= bindparam("told_before")))
    .order_by(_UNTOLD.desc(), jobs.c.serial)
    .limit(bindparam("most"))
)
_OLDEST_UNPUBLISHED = select(func.min(jobs.c.created_at)).where(jobs.c.state == JobState.WAITING, _UNTOLD)


class Jobs:
    """The jobs in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self,
        kind: JobKind,
        subject: Mapping[str, str],
        *,
        task_serial: int,
        now: datetime,
        round_serial: int | None = None,
    ) -> Job:
        """Ask for work; it becomes visible when the transaction commits."""
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
        row = self._connection.execute(_JOB, {"job_id": job_id}).one_or_none()
        return as_dataclass(Job, row) if row else None

    def claim(self, job_id: str, now: datetime, lease: timedelta) -> Job | None:
        """Take a waiting job; none if somebody else has it or it is over."""
        taken = self._connection.execute(_CLAIM, {"of_job_id": job_id, "until": now + lease})
        return self.get(job_id) if taken.rowcount else None

    def renew(self, claimed: Job, now: datetime, lease: timedelta) -> bool:
        """Hold on to a claimed job; false if it is no longer ours."""
        return self._under_lease(claimed, lease_expires_at=now + lease)

    def finish(self, claimed: Job, now: datetime) -> bool:
        """Mark a claimed job as done, in the transaction that holds its result; false if no longer ours."""
        return self._under_lease(claimed, state=JobState.DONE, lease_expires_at=None, finished_at=now)

    def put_back(self, claimed: Job, error: str) -> bool:
        """Give a claimed job back, to be tried again; false if no longer ours."""
        return self._under_lease(
            claimed, state=JobState.WAITING, lease_expires_at=None, published_at=None, error=error
        )

    def hand_back(self, claimed: Job) -> bool:
        """Give a claimed job back untried, because its worker stops; false if no longer ours."""
        return self._under_lease(
            claimed,
            state=JobState.WAITING,
            lease_expires_at=None,
            published_at=None,
            attempts=claimed.attempts - 1,
        )

    def give_up(self, claimed: Job, error: str, now: datetime) -> bool:
        """Mark a claimed job as failed; false if no longer ours."""
        return self._under_lease(
            claimed, state=JobState.FAILED, lease_expires_at=None, finished_at=now, error=error
        )

    def expired(self, now: datetime) -> list[Job]:
        """Leased jobs whose worker has not been heard of in time."""
        return [as_dataclass(Job, row) for row in self._connection.execute(_EXPIRED, {"now": now})]

    def to_publish(self, now: datetime, again_after: timedelta, most: int) -> list[Job]:
        """Waiting jobs that no worker has been told of, then those told of long ago: that may be lost."""
        due = {"told_before": now - again_after, "most": most}
        return [as_dataclass(Job, row) for row in self._connection.execute(_TO_PUBLISH, due)]

    def mark_published(self, job_ids: Sequence[str], now: datetime) -> None:
        """Remember that workers have been told."""
        waiting = (jobs.c.job_id.in_(job_ids)) & (jobs.c.state == JobState.WAITING)
        self._connection.execute(update(jobs).where(waiting).values(published_at=now))

    def mark_unpublished(self, job_id: str) -> None:
        """Have workers told of it again."""
        waiting = (jobs.c.job_id == job_id) & (jobs.c.state == JobState.WAITING)
        self._connection.execute(update(jobs).where(waiting).values(published_at=None))

    def cancel(self, *, task_serial: int | None = None, round_serial: int | None = None) -> None:
        """Take back the unfinished jobs of a task or a round; whoever works on one finds out at its end."""
        unfinished = jobs.c.state.in_((JobState.WAITING, JobState.LEASED))
        of = (
            jobs.c.task_serial == task_serial if round_serial is None else jobs.c.round_serial == round_serial
        )
        self._connection.execute(
            update(jobs).where(unfinished, of).values(state=JobState.CANCELLED, lease_expires_at=None)
        )

    def oldest_unpublished(self) -> datetime | None:
        """Since when the longest waiting job has waited to be published."""
        oldest: datetime | None = self._connection.execute(_OLDEST_UNPUBLISHED).scalar_one()
        return oldest

    def _under_lease(self, claimed: Job, **values: object) -> bool:
        ours = {"of_job_id": claimed.job_id, "of_token": claimed.token}
        return bool(self._connection.execute(_UNDER_LEASE, ours | values).rowcount)
