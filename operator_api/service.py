"""The parts of one API process, and their construction."""

from dataclasses import dataclass

from operator_api.compute_pool import ComputePool
from operator_api.event_stream import EventHub
from operator_api.monitoring import Monitoring
from operator_api.reconciler import Reconciler
from operator_api.resource_reports import ReportLimits
from operator_api.security import Authenticator
from operator_api.writers import ArrivalWriter, ReportWriter, UpdateWriter
from services.errors import ServiceStartError
from services.settings import Settings
from services.storage.database import Database
from services.storage.migration import has_content, migrate
from services.storage.model_store import ModelStore, open_model_store
from trainer_worker.publisher import Publisher


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
