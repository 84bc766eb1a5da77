"""The parts of one API process, and their construction."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from operator_api.event_stream import EventHub
from operator_api.monitoring import Monitoring
from operator_api.reconciler import Reconciler
from operator_api.resource_reports import ReportLimits
from operator_api.security import Authenticator
from operator_api.writers import ArrivalWriter, ReportWriter, UpdateWriter
from services.errors import ServiceBusyError, ServiceStartError
from services.settings import Settings
from services.storage.database import Database
from services.storage.migration import has_content, migrate
from services.storage.model_store import ModelStore, open_model_store
from trainer_worker.publisher import Publisher

THREADS = 2
"""More threads are not faster, because of the interpreter lock; with one, a chart would wait for a plan."""
MAX_PENDING = 50
"""Requests that are being worked on or wait for it."""
_RETRY_AFTER_S = 2.0

_T = TypeVar("_T")


class ComputePool:
    """A thread pool with a bounded queue for charts and plans. Each takes up to seconds of CPU time.

    In the shared thread pool, forty charts at once delayed reports by 19 s: no thread was free, and forty
    threads competed for the interpreter.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "compute")
        self._pending = 0

    async def run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """The result of the work, when its turn has come; refused if too many wait."""
        if self._pending >= MAX_PENDING:
            raise ServiceBusyError(
                f"{MAX_PENDING} charts and plans are being made. Ask again later.", _RETRY_AFTER_S
            )
        self._pending += 1
        try:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, context.run, work, *arguments
            )
        finally:
            self._pending -= 1

    def stop(self) -> None:
        """End the threads; what has not begun is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Service:
    """The parts of one API process."""

    settings: Settings
    database: Database
    models: ModelStore
    authenticator: Authenticator
    hub: EventHub
    compute: ComputePool
    report_limits: ReportLimits
    reports: ReportWriter
    arrivals: ArrivalWriter
    updates: UpdateWriter
    publisher: Publisher
    reconciler: Reconciler
    monitoring: Monitoring

    def stop(self) -> None:
        """End the threads, finish what was accepted, close the database."""
        self.reconciler.stop()
        self.compute.stop()
        self.reports.stop()
        self.arrivals.stop()
        self.database.close()


def bootstrap(settings: Settings, *, accept_empty_database: bool = False) -> Service:
    """Build the parts, see that the model store can be used, bring the database to its newest shape.

    Unless it is accepted, an empty database beside a model store with files is refused.
    """
    models = open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes)
    models.check()
    database = Database(settings.database_url)
    # The store first: before a file is kept in it, the database has content.
    if not accept_empty_database and not models.is_empty() and not has_content(database):
        database.close()
        raise ServiceStartError(
            f"the database {database.engine.url} is empty, but the model store {settings.model_store} has "
            "files. Restore the database, or correct FEDCS_DATABASE_URL or FEDCS_MODEL_STORE. To start with "
            "the empty database, and have the files in the store deleted, give --accept-empty-database"
        )
    migrate(database)
    database.set_clock()
    monitoring = Monitoring(database)
    publisher = Publisher(settings)
    hub = EventHub(database)
    arrivals = ArrivalWriter(database)
    return Service(
        settings=settings,
        database=database,
        models=models,
        authenticator=Authenticator(settings, database, hub),
        hub=hub,
        compute=ComputePool(),
        report_limits=ReportLimits(settings),
        reports=ReportWriter(database),
        arrivals=arrivals,
        updates=UpdateWriter(database),
        publisher=publisher,
        reconciler=Reconciler(
            settings, database, models, arrivals=arrivals, publisher=publisher, monitoring=monitoring
        ),
        monitoring=monitoring,
    )
