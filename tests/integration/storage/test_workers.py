"""Workers and their refusals, in both kinds of database."""

from sqlalchemy import delete, select

from services.domain.jobs import Job, JobKind
from services.storage.database import Database, UnitOfWork
from services.storage.tables import job_refusals, jobs
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE

LIFE = 30 * SECOND


def new_job(uow: UnitOfWork) -> Job:
    task = factories.ready_task(uow)
    return uow.jobs.add(JobKind.EVALUATE_MODEL, {"of": task.task_id}, task_serial=task.serial, now=NOW)


def test_a_worker_is_live_as_long_as_it_reports(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.workers.report(factories.worker("b", "train"), ["no folder"], NOW, NOW + LIFE)
        uow.workers.report(factories.worker("a"), [], NOW, NOW + LIFE)
        uow.workers.report(factories.worker("b", "train"), [], NOW + SECOND, NOW + SECOND + LIFE)
        a, b = uow.workers.live(NOW + SECOND)
        assert (a.host, list(a.queues), list(a.problems)) == ("a", ["aggregate", "train"], [])
        assert (b.host, b.pid, list(b.queues), list(b.problems)) == ("b", 4711, ["train"], [])
        assert (b.started_at, b.seen_at, b.expires_at) == (NOW, NOW + SECOND, NOW + SECOND + LIFE)
        assert [worker.host for worker in uow.workers.live(NOW + LIFE)] == ["b"]
        assert uow.workers.live(NOW + 2 * LIFE) == []
        uow.workers.remove("worker-b")
        assert [worker.host for worker in uow.workers.live(NOW)] == ["a"]


def test_dead_workers_and_old_refusals_are_forgotten(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = new_job(uow)
        for host, life in (("old", LIFE), ("new", 2 * LIFE)):
            uow.workers.report(factories.worker(host), [], NOW, NOW + life)
            uow.refusals.add(job.job_id, f"worker-{host}", "no data", NOW, NOW + life)
        uow.workers.delete_before(NOW + 2 * LIFE)
        assert [worker.host for worker in uow.workers.live(NOW)] == ["new"]
        assert uow.refusals.refused_by(job.job_id) == {"worker-new"}


def test_a_refusal_stands_until_it_expires_and_is_remembered_longer(database: Database) -> None:
    with database.unit_of_work() as uow:
        first, second = new_job(uow), new_job(uow)
        uow.refusals.add(first.job_id, "worker-a", "no folder", NOW, NOW + LIFE)
        uow.refusals.add(second.job_id, "worker-a", "no memory", NOW + SECOND, NOW + 2 * LIFE)
        found = uow.refusals.get(first.job_id, "worker-a")
        assert found is not None
        assert (found.error, found.expires_at) == ("no folder", NOW + LIFE)
        assert [refusal.error for refusal in uow.refusals.standing(NOW)] == ["no memory", "no folder"]
        assert [refusal.error for refusal in uow.refusals.standing(NOW + LIFE)] == ["no memory"]
        assert uow.refusals.refused_by(first.job_id) == {"worker-a"}
        assert uow.refusals.get(first.job_id, "worker-b") is None

        uow.refusals.add(first.job_id, "worker-a", "no folder", NOW + LIFE, NOW + 2 * LIFE)
        again = uow.refusals.get(first.job_id, "worker-a")
        assert again is not None
        assert again.refused_at == NOW + LIFE


def test_refusals_go_with_their_job(database: Database) -> None:
    with database.unit_of_work() as uow:
        job = new_job(uow)
        uow.refusals.add(job.job_id, "worker-a", "no folder", NOW, NOW + LIFE)
        uow._connection.execute(delete(jobs).where(jobs.c.job_id == job.job_id))
        assert uow._connection.execute(select(job_refusals)).all() == []


def test_why_a_version_is_not_evaluated_is_kept_once(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        uow.models.put(task, 1, UPDATE, NOW)
        assert uow.models.set_evaluation_error(task, 1, "no data set")
        assert not uow.models.set_evaluation_error(task, 1, "no memory")
        assert uow.models.get(task.serial, 1).evaluation_error == "no data set"
        assert uow.models.evaluation_errors(task.serial) == {1: "no data set"}


def test_the_newest_model_is_that_of_the_newest_task_with_one(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.models.newest() is None
        factories.ready_task(uow)
        task = factories.ready_task(uow)
        uow.tasks.add(factories.terms(), NOW)
        uow.models.put(task, 1, UPDATE, NOW)
        uow.tasks.change(task, model_version=1)
        newest = uow.models.newest()
        assert newest is not None
        assert (newest.version, newest.digest) == (1, UPDATE.digest)
