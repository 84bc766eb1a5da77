"""Holding on to a claimed job while it is worked on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event as SharedEvent
from threading import Event, Thread

import structlog
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import Job
from services.errors import StorageFullError
from services.protocol.job_lease import RENEW_EVERY_S, renew_job
from services.storage.database import Database, describe_failure

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.1


class LeaseLostError(Exception):
    """The job was cancelled, or somebody else has it now."""


class WorkerStopsError(Exception):
    """The worker is to end; the job is for another."""


class Lease:
    """A claim, renewed by a thread of its own; whoever works tells how far it is, and hears when to end."""

    def __init__(self, database: Database, claimed: Job, stopping: SharedEvent) -> None:
        self._database = database
        self._claimed = claimed
        self._stopping = stopping
        self._done = 0.0
        self._lost = False
        self._over = Event()

    def progress(self, done: float) -> None:
        """Say which part of the work is done; raises when the work is to end."""
        self._done = done
        if self._lost:
            raise LeaseLostError
        if self._stopping.is_set():
            raise WorkerStopsError

    def wait(self, seconds: float) -> None:
        """Do nothing for so long; raises when the work is to end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.progress(self._done)
            time.sleep(_LOOK_EVERY_S)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renew the claim meanwhile."""
        thread = Thread(target=self._renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _renew(self) -> None:
        while not self._over.wait(RENEW_EVERY_S) and not self._lost:
            try:
                with self._database.unit_of_work() as uow:
                    self._lost = not renew_job(uow, self._claimed, self._done, self._database.now())
                    uow.commit()
            except (SQLAlchemyError, StorageFullError) as error:  # it may be back before the lease ends
                _log.warning("the lease was not renewed", error=describe_failure(error))
