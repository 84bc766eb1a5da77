"""Jobs: how often they are tried, and who takes them."""

from dataclasses import replace
from datetime import UTC, datetime

from services.domain.jobs import QUEUES, Job, JobKind, JobState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_attempts_are_counted_down() -> None:
    job = Job(
        job_id="job-1",
        kind=JobKind.AGGREGATE_ROUND,
        state=JobState.LEASED,
        task_serial=1,
        round_serial=1,
        subject={"round_id": "round-1"},
        attempts=1,
        max_attempts=3,
        token=1,
        lease_expires_at=NOW,
        published_at=None,
        created_at=NOW,
        error=None,
    )
    assert job.attempts_left == 2
    assert replace(job, attempts=3).attempts_left == 0


def test_every_kind_of_job_has_a_queue() -> None:
    assert set(QUEUES) == set(JobKind)
    assert {kind for kind, queue in QUEUES.items() if queue == "aggregate"} == {JobKind.AGGREGATE_ROUND}
