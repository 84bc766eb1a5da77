"""The health check of a worker: ``python -m trainer_worker.health``."""

import sys
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from services.errors import FedCSError
from services.settings import WorkerSettings, load_settings
from services.storage.database import Database, describe_failure
from services.storage.migration import is_up_to_date
from trainer_worker.publisher import Publisher

_MAX_AGE_S = 30.0


def is_heartbeat_fresh(file: Path, now_s: float) -> bool:
    """Whether the file was touched recently."""
    try:
        return now_s - file.stat().st_mtime < _MAX_AGE_S
    except FileNotFoundError:
        return False


def find_problems(settings: WorkerSettings) -> list[str]:
    """The problems that keep the worker from its jobs; empty if it is healthy."""
    found = {
        "worker": _check_worker(settings),
        "broker": Publisher(settings).state(),
        "database": _check_database(settings),
    }
    return [f"{part}: {state}" for part, state in found.items() if state != "ok"]


def _check_worker(settings: WorkerSettings) -> str:
    if settings.heartbeat_file is None:
        return "FEDCS_HEARTBEAT_FILE is not set, so its health is unknown"
    return (
        "ok" if is_heartbeat_fresh(settings.heartbeat_file, time.time()) else "it does not consume messages"
    )


def _check_database(settings: WorkerSettings) -> str:
    database = Database(settings.database_url)
    try:
        return "ok" if is_up_to_date(database) else "its schema does not match this version"
    except SQLAlchemyError as error:
        return describe_failure(error)
    finally:
        database.close()


def main() -> None:
    """Print the problems and exit with 1 if there are any; for container health checks."""
    try:
        problems = find_problems(load_settings(WorkerSettings))
    except FedCSError as error:
        problems = [str(error)]
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
