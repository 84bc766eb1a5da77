"""Which jobs workers are told of through a real Redis, and which again."""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from services.domain.jobs import Job, JobKind
from services.settings import ProcessSettings
from services.storage.database import Database
from services.storage.migration import migrate
from tests.integration.storage import factories
from tests.redis_server import redis_server
from trainer_worker.publisher import BrokerUnavailableError, Publisher

LONG = timedelta(seconds=31)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as (port, _):
        yield port


@pytest.fixture
def broker(port: int) -> Iterator[redis.Redis]:
    with redis.Redis(port=port, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    migrate(database)
    yield database
    database.close()


@pytest.fixture
def publisher(port: int) -> Publisher:
    return Publisher(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0"))


def _told(broker: redis.Redis, queue: str = "train") -> list[str]:
    """The jobs of the messages that wait, in the order in which workers take them."""
    bodies = [json.loads(text)["body"] for text in reversed(broker.lrange(queue, 0, -1))]
    return [json.loads(base64.b64decode(body))[0][0] for body in bodies]


def _new_job(database: Database, kind: JobKind = JobKind.INITIALIZE_MODEL) -> str:
    with database.unit_of_work() as uow:
        task = uow.tasks.add(factories.terms(), datetime.now(UTC))
        job = uow.jobs.add(kind, {"of": task.task_id}, task_serial=task.serial, now=datetime.now(UTC))
        uow.commit()
    return job.job_id


def _told_long_ago(database: Database, *job_ids: str) -> None:
    with database.unit_of_work() as uow:
        uow.jobs.mark_published(job_ids, datetime.now(UTC) - LONG)
        uow.commit()


def _get(database: Database, job_id: str) -> Job:
    with database.reading() as store:
        job = store.jobs.get(job_id)
    assert job is not None
    return job


def test_a_new_job_is_told_of_once(publisher: Publisher, broker: redis.Redis, database: Database) -> None:
    first = _new_job(database)
    publisher.publish_waiting(database)
    publisher.publish_waiting(database)
    assert _told(broker) == [first]
    second = _new_job(database)
    publisher.publish_waiting(database)
    assert _told(broker) == [first, second], "however many messages wait"
    broker.flushall()
    publisher.publish_waiting(database)
    assert _told(broker) == [], "it has been told a moment ago"


def test_where_messages_wait_workers_are_busy_and_not_told_again(
    publisher: Publisher, broker: redis.Redis, database: Database
) -> None:
    waiting = [_new_job(database) for _ in range(3)]
    publisher.publish_waiting(database)
    _told_long_ago(database, *waiting)
    before = _get(database, waiting[0]).published_at
    publisher.publish_waiting(database)
    assert _told(broker) == waiting
    assert _get(database, waiting[0]).published_at == before


def test_where_no_message_waits_it_may_be_lost_and_is_sent_again(
    publisher: Publisher, broker: redis.Redis, database: Database
) -> None:
    waiting = [_new_job(database) for _ in range(3)]
    publisher.publish_waiting(database)
    _told_long_ago(database, *waiting)
    broker.flushall()
    publisher.publish_waiting(database)
    assert _told(broker) == waiting
    published_at = _get(database, waiting[0]).published_at
    assert published_at is not None
    assert published_at > datetime.now(UTC) - LONG / 2
    broker.flushall()
    publisher.publish_waiting(database)
    assert _told(broker) == [], "the time begins anew"


def test_who_is_new_to_a_broker_tells_again_at_once_what_it_may_have_lost(
    port: int, publisher: Publisher, broker: redis.Redis, database: Database
) -> None:
    waiting = [_new_job(database) for _ in range(3)]
    publisher.publish_waiting(database)
    broker.flushall()
    Publisher(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0")).publish_waiting(database)
    assert _told(broker) == waiting
    Publisher(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0")).publish_waiting(database)
    assert _told(broker) == waiting, "messages wait: nothing is lost"


def test_each_queue_is_looked_at_for_itself(
    publisher: Publisher, broker: redis.Redis, database: Database
) -> None:
    training, aggregation = _new_job(database), _new_job(database, JobKind.AGGREGATE_ROUND)
    publisher.publish_waiting(database)
    _told_long_ago(database, training, aggregation)
    broker.delete("aggregate")
    publisher.publish_waiting(database)
    assert (_told(broker, "train"), _told(broker, "aggregate")) == ([training], [aggregation])


def test_a_job_that_is_not_waiting_is_not_told_of(
    publisher: Publisher, broker: redis.Redis, database: Database
) -> None:
    job_id = _new_job(database)
    with database.unit_of_work() as uow:
        assert uow.jobs.claim(job_id, datetime.now(UTC), LONG)
        uow.commit()
    publisher.publish_waiting(database)
    assert _told(broker) == []


def test_while_the_broker_is_away_nothing_counts_as_told(tmp_path: Path, database: Database) -> None:
    job_id = _new_job(database)
    with redis_server(tmp_path) as (port, process):
        publisher = Publisher(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0"))
        assert publisher.state() == "ok"
        process.kill()
        process.wait()
        with pytest.raises(BrokerUnavailableError):
            publisher.publish_waiting(database)
        assert publisher.state().startswith("not reached")
    assert _get(database, job_id).published_at is None
    with redis_server(tmp_path, port), redis.Redis(port=port, decode_responses=True) as broker:
        publisher.publish_waiting(database)
        assert _told(broker) == [job_id]


def test_a_broker_that_goes_while_it_is_asked_is_away_and_new_when_it_is_back(
    tmp_path: Path, database: Database
) -> None:
    with redis_server(tmp_path) as (port, server):
        publisher = Publisher(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0"))
        job_id = _new_job(database)
        publisher.publish_waiting(database)
        _told_long_ago(database, job_id)
        server.kill()
        server.wait()
        with pytest.raises(BrokerUnavailableError):
            publisher.publish_waiting(database)
    with redis_server(tmp_path, port), redis.Redis(port=port, decode_responses=True) as broker:
        publisher.publish_waiting(database)
        assert _told(broker) == [job_id]


def test_without_a_broker_jobs_wait(database: Database) -> None:
    job_id = _new_job(database)
    publisher = Publisher(ProcessSettings())
    publisher.publish_waiting(database)
    assert publisher.state() == "not set up"
    assert _get(database, job_id).published_at is None


class _QuickWorker(Publisher):
    """Its messages are answered before it has returned from sending them."""

    database: Database

    def _send(self, jobs: Sequence[Job]) -> None:
        super()._send(jobs)
        with self.database.unit_of_work() as uow:
            uow.jobs.mark_unpublished([job.job_id for job in jobs])
            uow.commit()


def test_a_job_that_a_worker_puts_back_at_once_is_told_of_again(
    database: Database, broker: redis.Redis, port: int
) -> None:
    job_id = _new_job(database)
    publisher = _QuickWorker(ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0"))
    publisher.database = database
    publisher.publish_waiting(database)
    publisher.publish_waiting(database)
    assert _told(broker) == [job_id, job_id]


class _LostBroker(Publisher):
    """It reaches its broker, and loses it while it sends."""

    def _send(self, jobs: Sequence[Job]) -> None:
        super()._send(jobs[:1])
        raise ConnectionResetError


def test_jobs_that_could_not_be_told_of_count_as_not_told_of(
    database: Database, broker: redis.Redis, port: int
) -> None:
    settings = ProcessSettings(broker_url=f"redis://127.0.0.1:{port}/0")
    told = [_new_job(database), _new_job(database)]
    with pytest.raises(BrokerUnavailableError):
        _LostBroker(settings).publish_waiting(database)
    assert _told(broker) == told[:1]
    Publisher(settings).publish_waiting(database)
    assert _told(broker) == [told[0], *told]
