"""Jobs on hosts that cannot do them: they go to another worker, and fail when there is none.

The workers are in this process, without Celery: what a message makes them do is called directly.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from services.domain.jobs import Job, JobKind, JobState, WorkerIdentity, describe_problems
from services.domain.tasks import Task, TaskState
from services.learning.devices import check_device, is_host_failure
from services.protocol.initialization import start_task
from services.settings import WorkerSettings
from services.storage.database import Database
from services.storage.migration import migrate
from services.storage.tables import jobs
from tests.integration import failing_learning
from tests.integration.failing_learning import DATASET, MODULE, NETWORK
from tests.integration.rounds_setup import eventually
from tests.integration.storage import factories
from trainer_worker.context import WorkerContext, bootstrap
from trainer_worker.heartbeat import Heartbeat
from trainer_worker.jobs import do_job
from trainer_worker.lease import StopFlag


@dataclass
class Hosts:
    """Workers on hosts of their own, that share a database and a model store."""

    directory: Path
    database: Database
    closing: ExitStack

    def start(self, host: str, *, datasets: str = "datasets", **settings: Any) -> WorkerContext:
        """A worker that reports itself; its data sets are in this folder."""
        given_settings: dict[str, Any] = {
            "data_dir": self.directory,
            "broker_url": "redis://127.0.0.1:9/0",
            "datasets": self.directory / datasets,
            "allowed_imports": (MODULE,),
            "retry_pause_s": 0.01,
            "heartbeat_s": 600.0,
        }
        identity = WorkerIdentity(f"worker-{host}", host, 1, ("aggregate", "train"))
        context = bootstrap(WorkerSettings(**given_settings | settings), identity, 0, StopFlag())
        self.closing.callback(context.database.close)
        heartbeat = Heartbeat(context)
        heartbeat.start()
        self.closing.callback(heartbeat.stop)
        eventually(lambda: host in {worker.host for worker in self.live()})
        return context

    def live(self) -> Any:
        with self.database.reading() as store:
            return store.workers.live(self.database.now())

    def new_task(self, **terms: object) -> tuple[str, Job]:
        """A task of ours, and the job that makes its model."""
        values: dict[str, object] = {"model": NETWORK, "dataset": DATASET}
        with self.database.unit_of_work() as uow:
            task = start_task(uow, factories.terms(**values | terms), self.database.now())
            of_task = select(jobs.c.job_id).where(jobs.c.task_serial == task.serial)
            job = uow.jobs.get(uow._connection.execute(of_task).scalar_one())
            uow.commit()
        assert job is not None
        return task.task_id, job

    def new_evaluation(self, task_id: str) -> Job:
        """A job that measures the model of a task."""
        subject = {"task_id": task_id, "version": "0", "part": "0"}
        with self.database.unit_of_work() as uow:
            serial, now = uow.tasks.get(task_id).serial, self.database.now()
            job = uow.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=serial, now=now)
            uow.commit()
        return job

    def task(self, task_id: str) -> Task:
        with self.database.reading() as store:
            return store.tasks.get(task_id)

    def job(self, job: Job) -> Job:
        with self.database.reading() as store:
            found = store.jobs.get(job.job_id)
        assert found is not None
        return found

    def problems(self) -> str:
        with self.database.reading() as store:
            now = self.database.now()
            return describe_problems(store.workers.live(now), store.refusals.standing(now))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "centre.txt").write_text("3.5")
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    migrate(database)
    failing_learning.reads.clear()
    with ExitStack() as closing:
        closing.callback(database.close)
        yield Hosts(tmp_path, database, closing)


def little_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TEST_OUT_OF_MEMORY", "1")


@pytest.mark.parametrize(
    ("settings", "terms", "spoil", "saying"),
    [
        ({"datasets": "nowhere"}, {}, None, "nowhere' for data sets is not there; set FEDCS_DATASETS"),
        ({"allowed_imports": ()}, {}, None, "FEDCS_ALLOWED_IMPORTS has to name the module"),
        ({}, {}, little_memory, "can't allocate memory"),
    ],
)
def test_what_one_host_cannot_do_another_does(
    hosts: Hosts,
    settings: dict[str, Any],
    terms: dict[str, object],
    spoil: Callable[[pytest.MonkeyPatch], None] | None,
    saying: str,
) -> None:
    bad, good = hosts.start("bad", **settings), hosts.start("good")
    task_id, job = hosts.new_task(**terms)
    with pytest.MonkeyPatch.context() as patch:
        if spoil is not None:
            spoil(patch)
        do_job(bad, job.job_id)
        refused = hosts.job(job)
        assert (refused.state, refused.attempts) == (JobState.WAITING, 0)
        assert hosts.problems().startswith("bad (process 1): ")
        assert saying in hosts.problems()
        do_job(bad, job.job_id)  # told of it again, it leaves it to others
        assert hosts.job(job).token == refused.token
    do_job(good, job.job_id)
    assert hosts.task(task_id).state is TaskState.READY


def test_a_host_with_another_model_store_leaves_a_model_to_others(hosts: Hosts) -> None:
    good = hosts.start("good")
    task_id, job = hosts.new_task()
    do_job(good, job.job_id)
    bad = hosts.start("bad", model_store=hosts.directory / "mistaken")
    evaluation = hosts.new_evaluation(task_id)
    eventually(lambda: "bad (process 1): The model file" in hosts.problems())
    do_job(bad, evaluation.job_id)
    assert hosts.job(evaluation).state is JobState.WAITING
    do_job(good, evaluation.job_id)
    assert hosts.job(evaluation).state is JobState.DONE


def test_a_host_whose_model_store_is_gone_leaves_its_jobs_to_others(hosts: Hosts) -> None:
    bad, good = hosts.start("bad", model_store=hosts.directory / "mistaken"), hosts.start("good")
    shutil.rmtree(hosts.directory / "mistaken")
    task_id, job = hosts.new_task()
    do_job(bad, job.job_id)
    assert hosts.job(job).state is JobState.WAITING
    do_job(good, job.job_id)
    assert hosts.task(task_id).state is TaskState.READY


def test_what_every_live_worker_has_refused_fails(hosts: Hosts) -> None:
    first, second = hosts.start("first", datasets="nowhere"), hosts.start("second", datasets="nowhere")
    task_id, job = hosts.new_task()
    do_job(first, job.job_id)
    assert hosts.task(task_id).state is TaskState.INITIALIZING
    do_job(second, job.job_id)
    task = hosts.task(task_id)
    assert task.state is TaskState.FAILED
    assert "for data sets is not there" in str(task.detail)


def test_a_lone_worker_fails_what_its_settings_do_not_allow_at_once(hosts: Hosts) -> None:
    lone = hosts.start("lone", datasets="nowhere")
    task_id, job = hosts.new_task()
    do_job(lone, job.job_id)
    assert hosts.task(task_id).state is TaskState.FAILED
    assert hosts.job(job).attempts == 1


def test_a_lone_worker_tries_again_what_may_go_better_later(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = hosts.start("lone")
    task_id, job = hosts.new_task()
    little_memory(monkeypatch)
    do_job(lone, job.job_id)
    do_job(lone, job.job_id)
    assert hosts.task(task_id).state is TaskState.INITIALIZING
    monkeypatch.delenv("TEST_OUT_OF_MEMORY")
    do_job(lone, job.job_id)
    assert hosts.task(task_id).state is TaskState.READY
    assert hosts.job(job).attempts == 3


def test_an_evaluation_that_no_host_can_do_leaves_a_task_without_target_as_it_is(hosts: Hosts) -> None:
    good = hosts.start("good")
    task_id, job = hosts.new_task()
    do_job(good, job.job_id)
    (hosts.directory / "datasets" / "centre.txt").unlink()
    failing_learning.reads.clear()
    lone = hosts.start("other", datasets="nowhere")
    evaluation = hosts.new_evaluation(task_id)
    hosts.closing.pop_all().close()
    do_job(lone, evaluation.job_id)
    assert hosts.job(evaluation).state is JobState.FAILED
    assert hosts.task(task_id).state is TaskState.READY
    with hosts.database.reading() as store:
        version = store.models.get(hosts.task(task_id).serial, 0)
    assert "for data sets is not there" in str(version.evaluation_error)


def test_a_data_set_that_cannot_be_read_is_not_tried_with_every_job(hosts: Hosts) -> None:
    (hosts.directory / "empty").mkdir()
    bad, good = hosts.start("bad", datasets="empty"), hosts.start("good")
    made = [hosts.new_task() for _ in range(3)]
    for _, job in made:
        do_job(bad, job.job_id)
        assert hosts.job(job).state is JobState.WAITING
    assert failing_learning.reads == [hosts.directory / "empty"], "to try may take minutes"
    for task_id, job in made:
        do_job(good, job.job_id)
        assert hosts.task(task_id).state is TaskState.READY


def test_a_worker_reports_what_is_wrong_until_it_is_mended(hosts: Hosts) -> None:
    context = hosts.start("bad", datasets="later", heartbeat_s=0.05)
    eventually(lambda: "FEDCS_DATASETS" in hosts.problems())
    (hosts.directory / "later").mkdir()
    eventually(lambda: not hosts.problems())
    shutil.rmtree(context.models.directory)
    eventually(lambda: "The model store" in hosts.problems())
    hosts.closing.pop_all().close()
    assert hosts.live() == [], "it has stopped"


def test_a_worker_that_only_aggregates_needs_no_data_sets(hosts: Hosts) -> None:
    identity = WorkerIdentity("worker-a", "a", 1, ("aggregate",))
    settings = WorkerSettings(
        data_dir=hosts.directory, broker_url="redis://127.0.0.1:9/0", datasets=hosts.directory / "nowhere"
    )
    context = bootstrap(settings, identity, 0, StopFlag())
    heartbeat = Heartbeat(context)
    heartbeat.start()
    heartbeat.stop()
    assert heartbeat._problems == []
    context.database.close()


def test_a_device_is_tried() -> None:
    check_device(torch.device("cpu"))
    with pytest.raises(Exception, match="the device meta cannot be used"):
        check_device(torch.device("meta"))


@pytest.mark.parametrize(
    ("error", "of_host"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("out"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA"), False),
    ],
)
def test_which_errors_are_of_the_host(error: Exception, of_host: bool) -> None:
    assert is_host_failure(error) is of_host
