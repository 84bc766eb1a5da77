"""Waking workers up through Celery. The database has the work; a lost message only costs time."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.exceptions import ChannelError, OperationalError

from services.domain.jobs import QUEUES, Job, JobKind
from services.storage.database import Database

_TRANSPORT = {"socket_connect_timeout": 2, "socket_timeout": 5, "retry_on_timeout": False}
_PUBLISH_AGAIN = timedelta(seconds=30)
"""A job that still waits after this: its message may be lost."""
_MOST_AT_ONCE = 500


class BrokerAwayError(Exception):
    """The broker cannot be reached."""


def make_app(broker_url: str | None) -> Celery:
    """The Celery application, as those who publish need it, and those who work."""
    app = Celery("fedcs", broker=broker_url, set_as_current=False)
    # No result backend: the database has the results, and publishing would block while Redis is away.
    app.conf.update(task_ignore_result=True, broker_transport_options=_TRANSPORT)
    return app


def message_name(kind: JobKind) -> str:
    """What a message about this kind of job is called."""
    return f"trainer_worker.{kind.value}"


class Publisher:
    """Tells workers of jobs, if there is a broker; without one, jobs wait until there is.

    For one thread: the connection is kept, because to connect takes ten times as long as to tell of a job.
    """

    def __init__(self, broker_url: str | None) -> None:
        self.has_broker = broker_url is not None
        self._app = make_app(broker_url)
        self._connection = self._app.connection_for_write()
        self._knows_broker = False
        """Else it may be another one than before, or have lost everything."""

    def publish_waiting(self, database: Database) -> None:
        """Tell of the jobs that no worker knows of, as far as can be seen; any may be told of twice."""
        if not self.has_broker:
            return
        now = database.now()
        again_after = _PUBLISH_AGAIN if self._knows_broker else timedelta(0)
        with database.reading() as store:
            jobs = store.jobs.to_publish(now, again_after, _MOST_AT_ONCE)
        told = self._publish(jobs) if jobs else []
        self._knows_broker = True
        if not told:
            return
        with database.unit_of_work() as uow:
            uow.jobs.mark_published(told, now)
            uow.commit()

    def state(self) -> str:
        """``ok``, or why workers are not woken up; any thread may ask."""
        if not self.has_broker:
            return "not set up"
        try:
            with self._app.connection_for_write() as connection:
                _connect(connection)
        except (OperationalError, OSError) as error:
            return f"not reached: {error}"
        return "ok"

    def _publish(self, jobs: Sequence[Job]) -> list[str]:
        """Tell of these, but again only where no messages wait: where some do, the workers are just busy."""
        try:
            _connect(self._connection)
            again = {QUEUES[job.kind] for job in jobs if job.published_at is not None}
            busy = {queue for queue in again if _messages_in(self._connection, queue)}
            due = [job for job in jobs if job.published_at is None or QUEUES[job.kind] not in busy]
            for job in due:
                self._app.send_task(
                    message_name(job.kind),
                    args=[job.job_id],
                    queue=QUEUES[job.kind],
                    connection=self._connection,
                    retry=False,
                )
        except (OperationalError, OSError, *self._connection.connection_errors) as error:
            self._knows_broker = False
            self._connection.release()
            self._connection = self._app.connection_for_write()
            raise BrokerAwayError(str(error)) from error
        return [job.job_id for job in due]


def _connect(connection: Connection) -> None:
    """Find out at once whether the broker is there: else kombu waits for it, and the keeper with it."""
    connection.ensure_connection(max_retries=1, interval_start=0, timeout=2)  # type: ignore[no-untyped-call]


def _messages_in(connection: Connection, queue: str) -> int:
    try:
        declared: Any = connection.default_channel.queue_declare(queue, passive=True)  # type: ignore[no-untyped-call]
    except ChannelError:  # there is no such queue: nobody has ever published to it
        return 0
    return int(declared.message_count)
