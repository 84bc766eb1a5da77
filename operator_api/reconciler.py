"""The reconciler: transitions that are due by time, republished jobs, expired rows and unreferenced files.

Any number of API processes may run; one of them at a time holds the role, under a lease. Each duty is a
transaction that looks again before it acts, so two reconcilers that overlap for a moment do no harm.
"""

import secrets
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from threading import Event, Thread

import structlog

from operator_api.monitoring import Monitoring
from operator_api.writers import ArrivalWriter
from services.domain.rounds import UPLOAD_STATES, RoundState
from services.errors import ModelStoreUnavailableError
from services.protocol.aggregation import close_if_overdue
from services.protocol.block_allocation import in_order
from services.protocol.jobs import fail_job
from services.protocol.ready import dispatch_round, is_dispatch_due
from services.protocol.resource_request import advance_task, end_report_window, is_due
from services.protocol.transitions import lock_round
from services.settings import Settings
from services.storage.database import Database
from services.storage.model_store import ModelStore
from trainer_worker.publisher import BrokerUnavailableError, Publisher

_SWEEP_S = 60.0
_SWEEP_OLDER_THAN_S = 300.0
"""Ample time for a file that was kept to be referred to: no transaction waits longer than a minute."""
_STOP_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


class _StoppedError(Exception):
    """The process is stopping; the next reconciler collects."""


class BlobGarbageCollector:
    """Deletes unreferenced model files once a minute, in its own thread: a large store takes minutes."""

    def __init__(self, database: Database, models: ModelStore) -> None:
        self._database = database
        self._models = models
        self._next_sweep = 0.0
        self._stopping = False
        self._thread: Thread | None = None

    def sweep_if_due(self) -> None:
        """Start a collection if the last one started a minute ago and has ended."""
        if time.monotonic() < self._next_sweep or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_sweep = time.monotonic() + _SWEEP_S
        self._thread = Thread(target=self._run, name="blob_gc", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop before the next files are deleted; wait a limited time for a store that does not answer."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            if swept := self._models.delete_unreferenced(self._referenced, _SWEEP_OLDER_THAN_S):
                _log.info("unreferenced model files deleted", files=swept)
        except _StoppedError:
            pass
        except ModelStoreUnavailableError as error:
            _log.warning("garbage collection failed: the model store is unavailable", error=str(error))
        except Exception:
            _log.exception("garbage collection failed")

    def _referenced(self, digests: Collection[str]) -> set[str]:
        if self._stopping:
            raise _StoppedError
        with self._database.reading() as store:
            return store.models.referenced(digests)


_TICK_S = 0.5
_MIN_PAUSE_S = 0.01
"""Between two rounds of duties, so that many events at once do not keep it busy."""
_IGNORED_EVENTS = frozenset({"update.received", "update.late", "update.rejected", "clients.enrolled"})
"""Frequent events after which no duty is due."""
_DELETION_S = 600.0
_WORKER_RETENTION = timedelta(days=1)
"""How long workers that died, and refusals that expired, are kept."""
_DELETE_BATCH = 500


class Reconciler:
    """A thread that runs the due duties."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        models: ModelStore,
        *,
        arrivals: ArrivalWriter,
        publisher: Publisher,
        monitoring: Monitoring,
    ) -> None:
        self._settings = settings
        self._settle = timedelta(seconds=settings.settle_s)
        self._database = database
        self._blob_gc = BlobGarbageCollector(database, models)
        self._arrivals = arrivals
        self._publisher = publisher
        self._monitoring = monitoring
        self._holder = secrets.token_hex(8)
        self._lease_ends = 0.0
        self._next_deletion = 0.0
        self._broker_away = False
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name="reconciler", daemon=True)
        database.add_event_listener(self._on_events)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the duty at hand, and let another process take over."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._blob_gc.stop()
        with self._database.unit_of_work() as uow:
            uow.leases.release("reconciler", self._holder)
            uow.commit()

    def _on_events(self, kinds: Collection[str]) -> None:
        if not _IGNORED_EVENTS.issuperset(kinds):
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self._attempt(self._database.set_clock)
            if self._attempt(self._hold_role):
                for duty in (
                    self._end_report_windows,
                    self._dispatch_channels,
                    self._close_rounds,
                    self._release_blocks,
                    self._expire_leases,
                    self._advance_tasks,
                    self._publish_jobs,
                    self._delete_expired,
                    self._blob_gc.sweep_if_due,
                ):
                    self._attempt(duty)
            time.sleep(_MIN_PAUSE_S)
            self._wake.wait(_TICK_S)

    def _attempt(self, duty: Callable[[], bool | None]) -> bool:
        """Do one duty; whatever goes wrong with it must not stop the others, nor the next attempt."""
        try:
            return bool(duty())
        except Exception:
            _log.exception("a duty of the reconciler failed", duty=duty.__name__)
            return False

    def _hold_role(self) -> bool:
        lease_s = self._settings.reconciler_lease_s
        if time.monotonic() < self._lease_ends - lease_s / 2:
            return True
        asked = time.monotonic()
        with self._database.unit_of_work() as uow:
            held = uow.leases.acquire(
                "reconciler", self._holder, self._database.now(), timedelta(seconds=lease_s)
            )
            uow.commit()
        self._lease_ends = asked + lease_s if held else 0.0
        return held

    def _end_report_windows(self) -> None:
        now = self._database.now()
        with self._database.reading() as store:
            complete = [
                round_
                for round_ in store.rounds.in_states(RoundState.REQUESTING)
                if round_.window_ends_at is not None
                and (round_.window_ends_at <= now or not store.rounds.awaits_reports(round_))
            ]
        for round_ in complete:
            with self._database.unit_of_work() as uow:
                end_report_window(uow, round_.round_id, self._database.now())
                uow.commit()

    def _dispatch_channels(self) -> None:
        """Let grants lapse that are due, and grant the channels to others."""
        with self._database.reading() as store:
            now = self._database.now()
            due = [
                round_.round_id
                for round_ in store.rounds.in_states(*UPLOAD_STATES)
                if is_dispatch_due(store, round_, now)
            ]
        for round_id in due:
            with self._database.unit_of_work() as uow:
                dispatch_round(uow, round_id, self._database.now())
                uow.commit()

    def _close_rounds(self) -> None:
        with self._database.reading() as store:
            collecting = store.rounds.in_states(*UPLOAD_STATES)
            tasks = {round_.task_id: store.tasks.get(round_.task_id) for round_ in collecting}
        for round_ in collecting:
            silent_until = round_.active_at + timedelta(seconds=tasks[round_.task_id].terms.idle_timeout_s)
            if (round_.upload_deadline_at or silent_until) <= self._database.now():
                has_unrecorded = self._arrivals.has_unrecorded(round_.round_id)  # before the transaction
                with self._database.unit_of_work() as uow:
                    now = self._database.now()
                    close_if_overdue(uow, round_.round_id, now, self._settle, has_unrecorded=has_unrecorded)
                    uow.commit()

    def _release_blocks(self) -> None:
        """Free resource blocks of rounds that are over: such as those of a database that was restored."""
        with self._database.reading() as store:
            orphaned = store.allocations.orphaned()
        for round_serial in orphaned:
            with self._database.unit_of_work() as uow:
                lock_round(uow, uow.rounds.id_of(round_serial))
                if round_serial in uow.allocations.orphaned():
                    uow.allocations.release(round_serial, self._database.now())
                    _log.warning("a round that is over held resource blocks", round_serial=round_serial)
                uow.commit()

    def _expire_leases(self) -> None:
        with self._database.reading() as store:
            expired = store.jobs.expired(self._database.now())
        for job in expired:
            with self._database.unit_of_work() as uow:
                task_id = uow.tasks.id_of(job.task_serial)
                now = self._database.now()
                silent = job in uow.jobs.expired(now)  # else the lease was renewed
                if silent and fail_job(uow, task_id, job, "the worker was not heard of in time", now):
                    self._monitoring.lease_expired(job.kind)
                uow.commit()

    def _advance_tasks(self) -> None:
        with self._database.reading() as store:
            now = self._database.now()
            due = in_order(store, [task for task in store.tasks.idle() if is_due(store, task, now)], now)
        for task in due:
            with self._database.unit_of_work() as uow:
                if advance_task(uow, task.task_id, self._database.now()):
                    _log.info("the next round is open", task_id=task.task_id)
                uow.commit()

    def _publish_jobs(self) -> None:
        try:
            self._publisher.publish_waiting(self._database)
            self._broker_away = False
        except BrokerUnavailableError as error:
            if not self._broker_away:  # logged once, not at every attempt
                _log.warning("the broker cannot be reached", error=str(error))
            self._broker_away = True

    def _delete_expired(self) -> None:
        if time.monotonic() < self._next_deletion:
            return
        self._next_deletion = time.monotonic() + _DELETION_S
        settings = self._settings
        now = self._database.now()
        reports_before = now - timedelta(seconds=settings.report_retention_s)
        events_before = now - timedelta(seconds=settings.event_retention_s)
        with self._database.unit_of_work() as uow:
            uow.idempotency.delete_before(now - timedelta(seconds=settings.idempotency_retention_s))
            uow.workers.delete_before(now - _WORKER_RETENTION)
            uow.waiting_tasks.delete_expired(now)
            uow.allocations.delete_before(now - timedelta(seconds=settings.allocation_retention_s))
            uow.keys.delete_revoked_before(events_before)
            uow.commit()
        forgotten = True
        # In small transactions, so that other writers are not blocked.
        while forgotten and not self._stopping:
            with self._database.unit_of_work() as uow:
                forgotten = bool(
                    uow.reports.delete_before(reports_before, _DELETE_BATCH)
                    + uow.events.delete_before(events_before, _DELETE_BATCH)
                )
                uow.commit()
