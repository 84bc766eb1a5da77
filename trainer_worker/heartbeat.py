"""The heartbeat of a worker: its row in the database, with the problems of its host.

One of the child processes writes it. The main process forks, and a SQLite connection must not be used across
a fork.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import structlog
from celery import Celery, bootsteps
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import QUEUES, JobKind
from services.errors import FedCSError, StorageFullError
from services.learning.datasets import check_folder
from services.learning.devices import check_device
from services.storage.database import describe_failure
from trainer_worker.context import WorkerContext

_log = structlog.get_logger(__name__)

_MISSED_UNTIL_DEAD = 3
_TOUCH_INTERVAL_S = 5.0


class Heartbeat:
    """A thread that writes the worker's row; the row is deleted when the worker stops."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._problems: list[str] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and delete the worker's row."""
        self._stopping.set()
        self._thread.join()
        try:
            with self._context.database.unit_of_work() as uow:
                uow.workers.remove(self._context.identity.worker_id)
                uow.commit()
        except (SQLAlchemyError, StorageFullError) as error:  # the row expires a little later
            _log.warning("the worker's row was not removed", error=describe_failure(error))

    def _run(self) -> None:
        while True:
            self._report()  # before the checks, which block while the store is unavailable
            if (problems := list(find_problems(self._context))) != self._problems:
                self._problems = problems
                self._log_problems()
                self._report()
            if self._stopping.wait(self._context.settings.heartbeat_s):
                return

    def _report(self) -> None:
        database = self._context.database
        life = timedelta(seconds=_MISSED_UNTIL_DEAD * self._context.settings.heartbeat_s)
        try:
            database.set_clock()
            with database.unit_of_work() as uow:
                now = database.now()
                uow.workers.report(self._context.identity, self._problems, now, now + life)
                uow.commit()
        except (SQLAlchemyError, StorageFullError) as error:
            _log.warning("the heartbeat was not written", error=describe_failure(error))

    def _log_problems(self) -> None:
        if self._problems:
            _log.error("this host cannot run all jobs", problems=self._problems)
        else:
            _log.info("this host can run all jobs again")


def find_problems(context: WorkerContext) -> Iterator[str]:
    """Problems with the data sets, the device and the model store of this host."""
    checks: list[Callable[[], None]] = [lambda: _check_store(context)]
    if QUEUES[JobKind.TRAIN_CLIENT] in context.identity.queues:
        checks += [lambda: check_folder(context.settings.datasets), lambda: check_device(context.device)]
    for check in checks:
        try:
            check()
        except (FedCSError, OSError) as error:
            yield str(error)
        except SQLAlchemyError as error:  # not a problem of this host
            _log.warning("the model store was not checked", error=describe_failure(error))


def _check_store(context: WorkerContext) -> None:
    context.models.check()
    with context.database.reading() as store:
        newest = store.models.newest()
    if newest is not None:
        context.models.path_of(newest.digest)


def install_heartbeat_file(app: Celery, file: Path) -> None:
    """Touch the file periodically in the consumer loop of the worker."""

    class HeartbeatFile(bootsteps.StartStopStep):  # type: ignore[misc]
        # A consumer step: Celery starts it with each broker connection and clears its timer afterwards.
        requires = ("celery.worker.consumer:Connection",)

        def start(self, consumer: Any) -> None:
            file.touch()
            consumer.timer.call_repeatedly(_TOUCH_INTERVAL_S, file.touch)

    app.steps["consumer"].add(HeartbeatFile)
