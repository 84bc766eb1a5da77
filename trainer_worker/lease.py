"""The lease of a claimed job, renewed while the job runs, and the flag that stops a worker's processes."""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

import structlog
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import Job
from services.errors import StorageFullError
from services.protocol.jobs import renew_job
from services.settings import WorkerSettings
from services.storage.database import Database, describe_failure

_POLL_S = 0.1


class StopFlag:
    """A flag that the main process of a worker sets and all of its child processes see.

    It is a byte in shared memory, because a signal handler sets it: an event of ``multiprocessing`` has a
    lock, on which a second signal would deadlock.
    """

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)
        self._main_pid = os.getpid()

    def set(self) -> None:
        """Set the flag in all processes."""
        self._byte[0] = 1

    def is_set(self) -> bool:
        """Whether the flag is set or the main process has died."""
        return bool(self._byte[0]) or self._main_pid not in (os.getppid(), os.getpid())

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set or the time is over; returns whether it is set."""
        until = time.monotonic() + seconds
        while not self.is_set() and time.monotonic() < until:
            time.sleep(_POLL_S)
        return self.is_set()


_log = structlog.get_logger(__name__)

_CHECK_INTERVAL_S = 0.1
_RENEWALS_PER_LEASE = 4
_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""


class LeaseLostError(Exception):
    """The job was cancelled, or its lease was lost to another worker."""


class WorkerStopsError(Exception):
    """The worker is stopping; another worker does the job."""


class Lease:
    """The lease of a claimed job, renewed by a thread. The handler reports its progress.

    The lease is not renewed while the worker stops, after its main process has died, or when the job makes no
    progress for too long. If the job is still running when the lease expires, the process exits.
    """

    def __init__(
        self, settings: WorkerSettings, database: Database, claimed: Job, stopping: StopFlag
    ) -> None:
        self._database = database
        self._claimed = claimed
        self._stopping = stopping
        self._lease_s = settings.job_lease_s
        self._progress_timeout_s = settings.progress_timeout_s
        self._done = 0.0
        self._progress_at = self._renewed_at = time.monotonic()
        self._lost = False
        self._ended = Event()

    def progress(self, done: float) -> None:
        """Report the fraction that is done; raises when the job must stop."""
        self._done = done
        self._progress_at = time.monotonic()
        if self._lost:
            raise LeaseLostError
        if self._stopping.is_set():
            raise WorkerStopsError

    def wait(self, seconds: float) -> None:
        """Sleep; raises when the job must stop."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.progress(self._done)
            time.sleep(_CHECK_INTERVAL_S)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renew the lease while the context is active."""
        thread = Thread(target=self._renew_loop, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _renew_loop(self) -> None:
        while not self._ended.wait(self._lease_s / _RENEWALS_PER_LEASE):
            if reason := self._stop_reason():
                if time.monotonic() - self._renewed_at >= self._lease_s:
                    _log.error("the job hangs; its process exits", job_id=self._claimed.job_id, reason=reason)
                    os._exit(_EXIT_CODE)
            elif not self._lost:
                self._renew()

    def _stop_reason(self) -> str | None:
        if self._stopping.is_set():
            return "the worker is stopping"
        if time.monotonic() - self._progress_at >= self._progress_timeout_s:
            return "no progress within FEDCS_PROGRESS_TIMEOUT_S"
        return None

    def _renew(self) -> None:
        lease = timedelta(seconds=self._lease_s)
        started_at = time.monotonic()
        try:
            with self._database.unit_of_work() as uow:
                self._lost = not renew_job(uow, self._claimed, self._done, self._database.now(), lease)
                uow.commit()
            self._renewed_at = started_at
        except (
            SQLAlchemyError,
            StorageFullError,
        ) as error:  # the database may be back before the lease expires
            _log.warning("the lease was not renewed", error=describe_failure(error))
