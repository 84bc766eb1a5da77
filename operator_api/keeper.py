"""The keeper: what happens by itself when its time has come.

Any number of API processes may run; one of them at a time holds the role, under a lease. Each duty is a
transaction that looks again before it acts, so two keepers that overlap for a moment do no harm.
"""

import secrets
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from threading import Event, Thread

import structlog

from operator_api.monitoring import Monitoring
from operator_api.sweeper import Sweeper
from services.domain.rounds import UPLOAD_STATES, RoundState
from services.protocol.aggregation import close_if_overdue
from services.protocol.job_failure import fail_job
from services.protocol.next_round import advance_task, is_due
from services.protocol.resource_request import end_report_window
from services.settings import Settings
from services.storage.database import Database
from services.storage.model_store import ModelStore
from trainer_worker.publisher import BrokerAwayError, Publisher

_TICK_S = 0.5
_BREATH_S = 0.01
"""Between two rounds of duties, so that many events at once do not keep it busy."""
_NO_DUTY_IN = frozenset({"update.received", "update.late", "update.rejected", "clients.enrolled"})
"""Events that come by the thousand, and after which nothing is due."""
_LEASE = timedelta(seconds=10)
_HOUSEKEEPING_S = 600.0
_MOST_AT_ONCE = 500

_log = structlog.get_logger(__name__)


class Keeper:
    """A thread that does what is due."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        models: ModelStore,
        *,
        publisher: Publisher,
        monitoring: Monitoring,
    ) -> None:
        self._settings = settings
        self._database = database
        self._sweeper = Sweeper(database, models)
        self._publisher = publisher
        self._monitoring = monitoring
        self._holder = secrets.token_hex(8)
        self._lease_ends = 0.0
        self._next_housekeeping = 0.0
        self._broker_away = False
        self._wake = Event()
        self._stopping = False
        self._thread = Thread(target=self._run, name="keeper", daemon=True)
        database.when_events(self._hear)

    def start(self) -> None:
        """Begin to keep."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the duty at hand, and let another process take over."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._sweeper.stop()
        with self._database.unit_of_work() as uow:
            uow.leases.give_up("keeper", self._holder)
            uow.commit()

    def _hear(self, kinds: Collection[str]) -> None:
        if not _NO_DUTY_IN.issuperset(kinds):
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self._attempt(self._database.set_clock)
            if self._attempt(self._hold_role):
                for duty in (
                    self._end_report_windows,
                    self._close_rounds,
                    self._expire_leases,
                    self._advance_tasks,
                    self._publish_jobs,
                    self._keep_house,
                    self._sweeper.sweep_if_due,
                ):
                    self._attempt(duty)
            time.sleep(_BREATH_S)
            self._wake.wait(_TICK_S)

    def _attempt(self, duty: Callable[[], bool | None]) -> bool:
        """Do one duty; whatever goes wrong with it must not stop the others, nor the next attempt."""
        try:
            return bool(duty())
        except Exception:
            _log.exception("a duty of the keeper failed", duty=duty.__name__)
            return False

    def _hold_role(self) -> bool:
        if time.monotonic() < self._lease_ends - _LEASE.total_seconds() / 2:
            return True
        asked = time.monotonic()
        with self._database.unit_of_work() as uow:
            held = uow.leases.hold("keeper", self._holder, self._database.now(), _LEASE)
            uow.commit()
        self._lease_ends = asked + _LEASE.total_seconds() if held else 0.0
        return held

    def _end_report_windows(self) -> None:
        with self._database.reading() as store:
            waiting = store.rounds.in_states(RoundState.REQUESTING)
        for round_ in waiting:
            if round_.window_ends_at is not None and round_.window_ends_at <= self._database.now():
                with self._database.unit_of_work() as uow:
                    end_report_window(uow, round_.round_id, self._database.now())
                    uow.commit()

    def _close_rounds(self) -> None:
        with self._database.reading() as store:
            collecting = store.rounds.in_states(*UPLOAD_STATES)
            tasks = {round_.task_id: store.tasks.get(round_.task_id) for round_ in collecting}
        for round_ in collecting:
            silent_until = round_.active_at + timedelta(seconds=tasks[round_.task_id].terms.idle_timeout_s)
            if (round_.upload_deadline_at or silent_until) <= self._database.now():
                with self._database.unit_of_work() as uow:
                    close_if_overdue(uow, round_.round_id, self._database.now())
                    uow.commit()

    def _expire_leases(self) -> None:
        with self._database.reading() as store:
            expired = store.jobs.expired(self._database.now())
        for job in expired:
            with self._database.unit_of_work() as uow:
                task_id = uow.tasks.id_of(job.task_serial)
                now = self._database.now()
                silent = job in uow.jobs.expired(now)  # else it was heard of just now
                if silent and fail_job(uow, task_id, job, "the worker was not heard of in time", now):
                    self._monitoring.lease_expired(job.kind)
                uow.commit()

    def _advance_tasks(self) -> None:
        with self._database.reading() as store:
            idle = [task for task in store.tasks.idle() if is_due(store, task, self._database.now())]
        for task in idle:
            with self._database.unit_of_work() as uow:
                if advance_task(uow, task.task_id, self._database.now()):
                    _log.info("the next round is open", task_id=task.task_id)
                uow.commit()

    def _publish_jobs(self) -> None:
        try:
            self._publisher.publish_waiting(self._database)
            self._broker_away = False
        except BrokerAwayError as error:
            if not self._broker_away:  # said once, not twice a second
                _log.warning("the broker cannot be reached", error=str(error))
            self._broker_away = True

    def _keep_house(self) -> None:
        if time.monotonic() < self._next_housekeeping:
            return
        self._next_housekeeping = time.monotonic() + _HOUSEKEEPING_S
        settings = self._settings
        now = self._database.now()
        with self._database.unit_of_work() as uow:
            uow.idempotency.forget_before(now - timedelta(seconds=settings.idempotency_retention_s))
            uow.commit()
        reports_before = now - timedelta(seconds=settings.report_retention_s)
        events_before = now - timedelta(seconds=settings.event_retention_s)
        forgotten = True
        while forgotten and not self._stopping:  # a little at a time: others want to write as well
            with self._database.unit_of_work() as uow:
                forgotten = bool(
                    uow.reports.forget_before(reports_before, _MOST_AT_ONCE)
                    + uow.events.forget_before(events_before, _MOST_AT_ONCE)
                )
                uow.commit()
