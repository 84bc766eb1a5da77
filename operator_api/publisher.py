"""Waking workers up through Celery. The database has the work; a lost message only costs time."""

from collections.abc import Sequence

from celery import Celery
from kombu.exceptions import OperationalError

from services.domain.jobs import QUEUES, Job

_TRANSPORT = {"socket_connect_timeout": 2, "socket_timeout": 5, "retry_on_timeout": False}


class BrokerAwayError(Exception):
    """The broker cannot be reached."""


class Publisher:
    """Tells workers of jobs, if there is a broker; without one, jobs wait until there is."""

    def __init__(self, broker_url: str | None) -> None:
        self.has_broker = broker_url is not None
        self._app = Celery("fedcs", broker=broker_url, set_as_current=False)
        # No result backend: the database has the results, and publishing would block while Redis is away.
        self._app.conf.update(task_ignore_result=True, broker_transport_options=_TRANSPORT)

    def publish(self, jobs: Sequence[Job]) -> None:
        """Tell of these jobs; any of them may be told of twice."""
        try:
            with self._app.connection_for_write() as connection:
                for job in jobs:
                    self._app.send_task(
                        f"trainer_worker.{job.kind.value}",
                        args=[job.job_id],
                        queue=QUEUES[job.kind],
                        connection=connection,
                        retry=False,
                    )
        except (OperationalError, OSError) as error:
            raise BrokerAwayError(str(error)) from error

    def state(self) -> str:
        """``ok``, or why workers are not woken up."""
        if not self.has_broker:
            return "not set up"
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, timeout=2)
        except (OperationalError, OSError) as error:
            return f"not reached: {error}"
        return "ok"
