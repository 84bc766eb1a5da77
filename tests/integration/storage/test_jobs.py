"""The jobs in both kinds of database: claimed by one, finished under the newest lease only."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from services.domain.jobs import Job, JobKind, JobState
from services.storage.database import Database, UnitOfWork
from services.storage.jobs import MAX_ATTEMPTS
from services.storage.tables import jobs
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND

LEASE = timedelta(seconds=15)
WORKERS = 6


def test_a_job_waits_as_it_was_asked_for(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a")
        subject = {"round_id": round_.round_id, "note": "grün"}
        added = uow.jobs.add(
            JobKind.AGGREGATE_ROUND,
            subject,
            task_serial=round_.task_serial,
            round_serial=round_.serial,
            now=NOW,
        )
        uow.commit()
    expected = Job(
        job_id=added.job_id,
        kind=JobKind.AGGREGATE_ROUND,
        state=JobState.WAITING,
        task_serial=round_.task_serial,
        round_serial=round_.serial,
        subject=subject,
        attempts=0,
        max_attempts=MAX_ATTEMPTS,
        token=0,
        lease_expires_at=None,
        published_at=None,
        created_at=NOW,
        error=None,
    )
    with database.reading() as store:
        assert store.jobs.get(added.job_id) == added == expected
        assert store.jobs.get("job-unknown") is None


def test_the_same_work_is_never_asked_for_twice(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        subject = {"task_id": task.task_id, "version": "1"}
        uow.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=task.serial, now=NOW)
        uow.jobs.add(JobKind.EVALUATE_MODEL, subject | {"version": "2"}, task_serial=task.serial, now=NOW)
        with pytest.raises(IntegrityError):
            uow.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=task.serial, now=NOW)


def test_a_claimed_job_cannot_be_claimed_again(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
        assert claimed is not None
        assert (claimed.state, claimed.attempts, claimed.token) == (JobState.LEASED, 1, 1)
        assert claimed.lease_expires_at == NOW + LEASE
        assert uow.jobs.claim(job.job_id, NOW + 10 * LEASE, LEASE) is None
        assert uow.jobs.claim("job-unknown", NOW, LEASE) is None
        assert uow.jobs.get(job.job_id) == claimed


def test_of_workers_that_claim_a_job_at_once_one_gets_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        uow.commit()
    barrier = Barrier(WORKERS)

    def claim() -> Job | None:
        barrier.wait()
        with database.unit_of_work() as uow:
            claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
            uow.commit()
        return claimed

    with ThreadPoolExecutor(WORKERS) as pool:
        claims = [item.result() for item in [pool.submit(claim) for _ in range(WORKERS)]]
    assert [item.token for item in claims if item is not None] == [1]


def test_the_lease_is_renewed_by_its_holder(database: Database) -> None:
    with database.unit_of_work() as uow:
        claimed = _claimed(uow)
        assert uow.jobs.renew(claimed, NOW + SECOND, LEASE)
        renewed = uow.jobs.get(claimed.job_id)
        assert renewed is not None
        assert renewed.lease_expires_at == NOW + SECOND + LEASE
        assert (renewed.token, renewed.attempts) == (1, 1)


def test_a_worker_that_lost_its_lease_changes_nothing(database: Database) -> None:
    with database.unit_of_work() as uow:
        lost = _claimed(uow)
        assert uow.jobs.put_back(lost, "not heard of")
        _cannot_touch(uow, lost)
        held = uow.jobs.claim(lost.job_id, NOW, LEASE)
        assert held is not None
        assert (held.token, held.attempts, held.error) == (2, 2, "not heard of")
        _cannot_touch(uow, lost)
        assert uow.jobs.finish(held, NOW)
        _cannot_touch(uow, held)
        _cannot_touch(uow, lost)
        done = uow.jobs.get(lost.job_id)
        assert done is not None
        assert (done.state, done.lease_expires_at) == (JobState.DONE, None)
        assert uow.jobs.claim(lost.job_id, NOW, LEASE) is None


def test_a_job_is_given_up_after_its_last_attempt(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
            assert claimed is not None
            assert (claimed.attempts, claimed.attempts_left) == (attempt, MAX_ATTEMPTS - attempt)
            if claimed.attempts_left:
                assert uow.jobs.put_back(claimed, f"failure {attempt}")
        assert claimed is not None
        assert uow.jobs.give_up(claimed, f"failure {MAX_ATTEMPTS}", NOW)
        failed = uow.jobs.get(job.job_id)
        assert failed is not None
        assert (failed.state, failed.error) == (JobState.FAILED, f"failure {MAX_ATTEMPTS}")
        assert uow.jobs.claim(job.job_id, NOW, LEASE) is None


def test_a_job_handed_back_was_not_attempted(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        uow.jobs.mark_published([job.job_id], NOW)
        claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
        assert claimed is not None
        assert uow.jobs.hand_back(claimed)
        waiting = uow.jobs.get(claimed.job_id)
        assert waiting is not None
        assert (waiting.state, waiting.attempts, waiting.token) == (JobState.WAITING, 0, 1)
        assert (waiting.lease_expires_at, waiting.error) == (None, None)
        assert _ids(uow.jobs.to_publish(NOW, LEASE, most=10)) == [claimed.job_id]
        _cannot_touch(uow, claimed)
        again = uow.jobs.claim(claimed.job_id, NOW, LEASE)
        assert again is not None
        assert (again.attempts, again.token) == (1, 2)


def test_the_database_itself_refuses_an_attempt_too_many(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        uow._connection.execute(update(jobs).where(jobs.c.job_id == job.job_id).values(attempts=MAX_ATTEMPTS))
        with pytest.raises(IntegrityError, match="attempts_capped"):
            uow.jobs.claim(job.job_id, NOW, LEASE)


def test_leases_expire_at_their_moment_and_not_before(database: Database) -> None:
    with database.unit_of_work() as uow:
        first, second, _ = _claimed(uow), _claimed(uow), _job(uow)
        uow.jobs.renew(second, NOW + SECOND, LEASE)
        microsecond = timedelta(microseconds=1)
        assert _ids(uow.jobs.expired(NOW + LEASE - microsecond)) == []
        assert _ids(uow.jobs.expired(NOW + LEASE)) == [first.job_id]
        assert _ids(uow.jobs.expired(NOW + SECOND + LEASE)) == [first.job_id, second.job_id]
        uow.jobs.finish(first, NOW)
        assert _ids(uow.jobs.expired(NOW + 10 * LEASE)) == [second.job_id]


def test_waiting_jobs_are_published_and_again_when_the_message_may_be_lost(database: Database) -> None:
    again = timedelta(seconds=60)
    with database.unit_of_work() as uow:
        waiting = [_job(uow).job_id for _ in range(3)]
        leased = _claimed(uow)
        assert _ids(uow.jobs.to_publish(NOW, again, most=10)) == waiting
        assert _ids(uow.jobs.to_publish(NOW, again, most=2)) == waiting[:2]
        uow.jobs.mark_published([waiting[0], leased.job_id], NOW)
        assert _ids(uow.jobs.to_publish(NOW + again - SECOND, again, most=10)) == waiting[1:]
        untold_first = waiting[1:] + waiting[:1]
        assert _ids(uow.jobs.to_publish(NOW + again, again, most=10)) == untold_first
        assert _ids(uow.jobs.to_publish(NOW + again, again, most=2)) == waiting[1:]
        uow.jobs.mark_published(waiting[:1], NOW + again)
        assert _ids(uow.jobs.to_publish(NOW + again, again, most=10)) == waiting[1:]


def test_a_job_put_back_is_published_at_once(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        uow.jobs.mark_published([job.job_id], NOW)
        claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
        assert claimed is not None
        uow.jobs.mark_published([job.job_id], NOW)
        uow.jobs.put_back(claimed, "lost")
        assert _ids(uow.jobs.to_publish(NOW, 100 * LEASE, most=10)) == [job.job_id]


def test_a_job_whose_message_is_used_up_is_published_at_once_if_it_still_waits(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = _job(uow)
        uow.jobs.mark_published([job.job_id], NOW)
        assert uow.jobs.to_publish(NOW, 100 * LEASE, most=10) == []
        uow.jobs.mark_unpublished([job.job_id])
        assert _ids(uow.jobs.to_publish(NOW, 100 * LEASE, most=10)) == [job.job_id]
        uow.jobs.mark_published([job.job_id], NOW)
        claimed = uow.jobs.claim(job.job_id, NOW, LEASE)
        uow.jobs.mark_unpublished([job.job_id])
        assert uow.jobs.get(job.job_id) == claimed


def test_the_oldest_unpublished_job_tells_since_when(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.jobs.oldest_unpublished() is None
        task = factories.ready_task(uow)
        assert uow.jobs.oldest_unpublished() is None, "the job for the initial model has been cancelled"
        old, new = (
            uow.jobs.add(JobKind.EVALUATE_MODEL, {"version": version}, task_serial=task.serial, now=at)
            for version, at in (("1", NOW), ("2", NOW + SECOND))
        )
        assert uow.jobs.oldest_unpublished() == NOW
        uow.jobs.mark_published([old.job_id], NOW)
        assert uow.jobs.oldest_unpublished() == NOW + SECOND
        uow.jobs.mark_published([new.job_id], NOW)
        assert uow.jobs.oldest_unpublished() is None


def test_cancelling_takes_back_what_is_unfinished_and_nothing_else(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a")
        other = factories.ready_task(uow)
        of_round = [
            uow.jobs.add(
                JobKind.TRAIN_CLIENT,
                {"training_id": name},
                task_serial=round_.task_serial,
                round_serial=round_.serial,
                now=NOW,
            )
            for name in ("waiting", "leased", "done")
        ]
        of_task = uow.jobs.add(
            JobKind.EVALUATE_MODEL, {"version": "1"}, task_serial=round_.task_serial, now=NOW
        )
        of_other = uow.jobs.add(JobKind.EVALUATE_MODEL, {"version": "2"}, task_serial=other.serial, now=NOW)
        leased = uow.jobs.claim(of_round[1].job_id, NOW, LEASE)
        done = uow.jobs.claim(of_round[2].job_id, NOW, LEASE)
        assert leased is not None
        assert done is not None
        uow.jobs.finish(done, NOW)

        uow.jobs.cancel(round_serial=round_.serial)
        assert _states(uow, *of_round) == [JobState.CANCELLED, JobState.CANCELLED, JobState.DONE]
        assert _states(uow, of_task, of_other) == [JobState.WAITING, JobState.WAITING]
        _cannot_touch(uow, leased)

        uow.jobs.cancel(task_serial=round_.task_serial)
        assert _states(uow, of_round[2], of_task, of_other) == [
            JobState.DONE,
            JobState.CANCELLED,
            JobState.WAITING,
        ]


def _job(uow: UnitOfWork) -> Job:
    task = uow.tasks.add(factories.terms(), NOW)
    return uow.jobs.add(JobKind.INITIALIZE_MODEL, {"task_id": task.task_id}, task_serial=task.serial, now=NOW)


def _claimed(uow: UnitOfWork) -> Job:
    claimed = uow.jobs.claim(_job(uow).job_id, NOW, LEASE)
    assert claimed is not None
    return claimed


def _cannot_touch(uow: UnitOfWork, claimed: Job) -> None:
    before = uow.jobs.get(claimed.job_id)
    assert not uow.jobs.renew(claimed, NOW, 10 * LEASE)
    assert not uow.jobs.finish(claimed, NOW)
    assert not uow.jobs.put_back(claimed, "too late")
    assert not uow.jobs.hand_back(claimed)
    assert not uow.jobs.give_up(claimed, "too late", NOW)
    assert uow.jobs.get(claimed.job_id) == before


def _ids(found: list[Job]) -> list[str]:
    return [job.job_id for job in found]


def _states(uow: UnitOfWork, *of: Job) -> list[JobState]:
    found = [uow.jobs.get(job.job_id) for job in of]
    return [job.state for job in found if job is not None]
