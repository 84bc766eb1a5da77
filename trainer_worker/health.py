"""Whether the worker beside this process can work: ``python -m trainer_worker.health`` ends with 0 if so."""

import sys
import time

from sqlalchemy.exc import SQLAlchemyError

from services.errors import FedCSError
from services.settings import WorkerSettings, load_settings
from services.storage.database import Database, describe_failure
from services.storage.migration import is_up_to_date
from trainer_worker.publisher import Publisher
from trainer_worker.pulse import has_pulse


def find_troubles(settings: WorkerSettings) -> list[str]:
    """What keeps the worker from its work; nothing, if it is well."""
    found = {
        "worker": _look_at_worker(settings),
        "broker": Publisher(settings.broker_url).state(),
        "database": _look_at_database(settings),
    }
    return [f"{part}: {state}" for part, state in found.items() if state != "ok"]


def _look_at_worker(settings: WorkerSettings) -> str:
    if settings.pulse_file is None:
        return "without FEDCS_PULSE_FILE it cannot be told whether it takes messages"
    return "ok" if has_pulse(settings.pulse_file, time.time()) else "it takes no messages"


def _look_at_database(settings: WorkerSettings) -> str:
    database = Database(settings.database_url)
    try:
        return "ok" if is_up_to_date(database) else "it has the shape of another version"
    except SQLAlchemyError as error:
        return describe_failure(error)
    finally:
        database.close()


def main() -> None:
    """Say what the troubles are, for whoever looks at why a container is not healthy."""
    try:
        troubles = find_troubles(load_settings(WorkerSettings))
    except FedCSError as error:
        troubles = [str(error)]
    sys.exit("\n".join(troubles) or 0)


if __name__ == "__main__":
    main()
