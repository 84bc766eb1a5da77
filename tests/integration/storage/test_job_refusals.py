"""A host that cannot do a job puts it back for another; it fails when no live worker is left to try it."""

from services.domain.jobs import Job, JobKind, JobState
from services.domain.tasks import TaskOutcome, TaskState
from services.protocol.initialization import start_task
from services.protocol.jobs import claim_job, fail_job, refuse_job, skip_refused_job
from services.storage.database import Database, UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE

LEASE = 20 * SECOND
FOR_S = 60.0
BAD, GOOD, AGGREGATOR = (
    factories.worker("bad"),
    factories.worker("good"),
    factories.worker("other", "aggregate"),
)


def report(uow: UnitOfWork, *hosts: str) -> None:
    for host in hosts:
        queues = AGGREGATOR.queues if host == "other" else ()
        uow.workers.report(factories.worker(host, *queues), [], NOW, NOW + LEASE)


def claimed_job(uow: UnitOfWork) -> Job:
    start_task(uow, factories.terms(), NOW)
    return claim_again(uow, uow.jobs.to_publish(NOW, LEASE, most=1)[0].job_id)


def claim_again(uow: UnitOfWork, job_id: str) -> Job:
    claimed = claim_job(uow, job_id, NOW, LEASE)
    assert claimed is not None
    return claimed


def refuse(uow: UnitOfWork, job: Job) -> bool:
    return refuse_job(uow, job, BAD, "no data set", NOW, for_s=FOR_S)


def test_a_refused_job_waits_for_another_and_costs_no_attempt(database: Database) -> None:
    with database.unit_of_work() as uow:
        report(uow, "bad", "good")
        job = claimed_job(uow)
        assert refuse(uow, job)
        waiting = uow.jobs.get(job.job_id)
        assert waiting is not None
        assert (waiting.state, waiting.attempts, waiting.published_at) == (JobState.WAITING, 0, None)
        uow.commit()
        told = uow.events.after(0, 100)
    (refused,) = [event for event in told if event.kind == "job.refused"]
    assert (refused.data["host"], refused.data["error"]) == ("bad", "no data set")


def test_who_refused_a_job_leaves_it_to_others_for_a_while(database: Database) -> None:
    with database.unit_of_work() as uow:
        report(uow, "bad", "good")
        job = claimed_job(uow)
        assert not skip_refused_job(uow, job.job_id, BAD, NOW)
        assert refuse(uow, job)
        assert not skip_refused_job(uow, job.job_id, GOOD, NOW)
        uow.jobs.mark_published([job.job_id], NOW)
        assert uow.jobs.to_publish(NOW, LEASE, most=1) == []
        assert skip_refused_job(uow, job.job_id, BAD, NOW)
        assert uow.jobs.to_publish(NOW, LEASE, most=1) != [], "others are told of it"
        assert not skip_refused_job(uow, job.job_id, BAD, NOW + FOR_S * SECOND)


def test_a_job_is_not_refused_when_no_other_live_worker_may_do_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        report(uow, "bad", "other")
        job = claimed_job(uow)
        assert not refuse(uow, job), "the other takes no such jobs"
        unchanged = uow.jobs.get(job.job_id)
        assert unchanged == job

        report(uow, "good")
        assert refuse(uow, job)
        again = claim_again(uow, job.job_id)
        assert not refuse_job(uow, again, GOOD, "no data set", NOW, for_s=FOR_S), "the bad one has refused it"
        assert not refuse_job(uow, again, GOOD, "no data set", NOW + 10 * LEASE, for_s=FOR_S)


def test_what_is_no_longer_ones_own_is_not_refused(database: Database) -> None:
    with database.unit_of_work() as uow:
        report(uow, "bad", "good")
        job = claimed_job(uow)
        assert uow.jobs.hand_back(job)
        claim_again(uow, job.job_id)
        assert not refuse(uow, job)
        assert uow.refusals.refused_by(job.job_id) == set()


def failed_evaluation(uow: UnitOfWork, **terms: object) -> str:
    """A running task whose second version could not be evaluated, in two of its parts."""
    round_ = factories.scheduled_round(uow, "a", **terms)
    task = uow.tasks.get(round_.task_id)
    uow.models.put(task, 1, UPDATE, NOW)
    for part in ("0", "1"):
        subject = {"task_id": task.task_id, "version": "1", "part": part}
        job = uow.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=task.serial, now=NOW)
        claimed = claim_again(uow, job.job_id)
        assert fail_job(uow, task.task_id, claimed, f"no memory for {part}", NOW, permanent=True)
        if terms:
            break
    return task.task_id


def test_a_failed_evaluation_does_not_fail_a_task_without_a_target(database: Database) -> None:
    with database.unit_of_work() as uow:
        task_id = failed_evaluation(uow)
        task = uow.tasks.get(task_id)
        assert task.state is TaskState.RUNNING
        assert uow.rounds.open_of(task.serial) is not None
        assert uow.models.get(task.serial, 1).evaluation_error == "no memory for 0"
        uow.commit()
        told = uow.events.after(0, 100)
    (event,) = [event for event in told if event.kind == "model.not_evaluated"]
    assert event.data == {"version": 1, "error": "no memory for 0"}


def test_a_failed_evaluation_fails_a_task_that_waits_for_its_accuracy(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = uow.tasks.get(failed_evaluation(uow, target_accuracy=0.9))
        assert (task.state, task.outcome) == (TaskState.FAILED, TaskOutcome.EVALUATION_FAILED)
        assert task.detail == "no memory for 0"
        assert uow.models.get(task.serial, 1).evaluation_error == "no memory for 0"
