"""Publishes jobs to workers through Celery. The database holds the jobs; a lost message only costs time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import ChannelError, OperationalError

from services.domain.jobs import QUEUES, Job, JobKind
from services.settings import ProcessSettings
from services.storage.database import Database

_TRANSPORT = {"socket_connect_timeout": 2, "socket_timeout": 5, "retry_on_timeout": False}
_MAX_BATCH = 500


class BrokerUnavailableError(Exception):
    """The broker is unavailable."""


def make_app(broker_url: str | None) -> Celery:
    """The Celery application of publishers and workers."""
    app = Celery("fedcs", broker=broker_url, set_as_current=False)
    # No result backend: the database has the results, and publishing would block while Redis is down.
    app.conf.update(task_ignore_result=True, broker_transport_options=_TRANSPORT)
    return app


def message_name(kind: JobKind) -> str:
    """The Celery task name of a job kind."""
    return f"trainer_worker.{kind.value}"


class Publisher:
    """Publishes jobs if a broker is configured; otherwise jobs wait.

    For one thread. The connection stays open, because connecting takes ten times as long as publishing.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self.has_broker = settings.broker_url is not None
        self._republish_after = timedelta(seconds=settings.republish_after_s)
        self._app = make_app(settings.broker_url)
        self._connection = self._app.connection_for_write()
        self._knows_broker = False
        """False after a connection failure: the broker may have lost its messages."""

    def publish_waiting(self, database: Database) -> None:
        """Publish the waiting jobs whose message is missing or may be lost; a job may be published twice."""
        if not self.has_broker:
            return
        now = database.now()
        again_after = self._republish_after if self._knows_broker else timedelta(0)
        with database.reading() as store:
            jobs = store.jobs.to_publish(now, again_after, _MAX_BATCH)
        with self._broker_errors():
            due = self._due(jobs) if jobs else []
        self._knows_broker = True
        if not due:
            return
        job_ids = [job.job_id for job in due]
        with database.unit_of_work() as uow:  # before sending: a worker that puts a job back resets it
            uow.jobs.mark_published(job_ids, now)
            uow.commit()
        try:
            with self._broker_errors():
                self._send(due)
        except BrokerUnavailableError:
            with database.unit_of_work() as uow:
                uow.jobs.mark_unpublished(job_ids)
                uow.commit()
            raise

    def state(self) -> str:
        """``ok``, or the reason why jobs are not published; thread-safe."""
        if not self.has_broker:
            return "not set up"
        try:
            with self._app.connection_for_write() as connection:
                _connect(connection)
        except (OperationalError, OSError) as error:
            return f"not reached: {error}"
        return "ok"

    def _due(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs to publish, a second time only if the queue is empty: otherwise workers are busy."""
        _connect(self._connection)
        again = {QUEUES[job.kind] for job in jobs if job.published_at is not None}
        busy = {queue for queue in again if _messages_in(self._connection, queue)}
        return [job for job in jobs if job.published_at is None or QUEUES[job.kind] not in busy]

    def _send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._app.send_task(
                message_name(job.kind),
                args=[job.job_id],
                queue=QUEUES[job.kind],
                connection=self._connection,
                retry=False,
            )

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        """Translate broker errors into ``BrokerUnavailableError`` and open a new connection."""
        try:
            yield
        except (OperationalError, OSError, *self._connection.connection_errors) as error:
            self._knows_broker = False
            self._connection.release()
            self._connection = self._app.connection_for_write()
            raise BrokerUnavailableError(str(error)) from error


def _connect(connection: Connection) -> None:
    """Fail fast if the broker is unavailable: by default kombu blocks the reconciler."""
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=2)  # type: ignore[no-untyped-call]


def _messages_in(connection: Connection, queue: str) -> int:
    try:
        declared: Any = connection.default_channel.queue_declare(queue, passive=True)  # type: ignore[no-untyped-call]
    except ChannelError:  # the queue does not exist: nothing was ever published to it
        return 0
    return int(declared.message_count)
