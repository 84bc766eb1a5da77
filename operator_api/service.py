"""Everything one API process is made of, put together in one place."""

from dataclasses import dataclass

from operator_api.event_hub import EventHub
from operator_api.keeper import Keeper
from operator_api.monitoring import Monitoring
from operator_api.report_writer import ReportWriter
from operator_api.security import Guard
from operator_api.update_writer import UpdateWriter
from services.settings import Settings
from services.storage.database import Database
from services.storage.migration import migrate
from services.storage.model_store import ModelStore
from services.storage.open_model_store import open_model_store
from trainer_worker.publisher import Publisher


@dataclass(frozen=True)
class Service:
    """The parts of one API process."""

    settings: Settings
    database: Database
    models: ModelStore
    guard: Guard
    hub: EventHub
    reports: ReportWriter
    updates: UpdateWriter
    publisher: Publisher
    keeper: Keeper
    monitoring: Monitoring

    def stop(self) -> None:
        """End the threads, finish what was accepted, close the database."""
        self.keeper.stop()
        self.reports.stop()
        self.database.close()


def bootstrap(settings: Settings) -> Service:
    """Build the parts, see that the model store can be used, bring the database to its newest shape."""
    models = open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes)
    models.check()
    database = Database(settings.database_url)
    migrate(database)
    database.set_clock()
    monitoring = Monitoring(database)
    publisher = Publisher(settings.broker_url)
    hub = EventHub(database)
    return Service(
        settings=settings,
        database=database,
        models=models,
        guard=Guard(settings, database, hub),
        hub=hub,
        reports=ReportWriter(database),
        updates=UpdateWriter(database),
        publisher=publisher,
        keeper=Keeper(settings, database, models, publisher=publisher, monitoring=monitoring),
        monitoring=monitoring,
    )
