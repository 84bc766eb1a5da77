"""``fedcs up``: the API in this process, and beside it a Redis and a worker of its own."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from operator_api.embedded_redis import redis_command, redis_url, wait_for_redis
from operator_api.server import run_api
from operator_api.supervision import Supervised
from services.settings import Settings


def has_trainer() -> bool:
    """Whether workers can run here: they need torch, which the API does without."""
    return find_spec("torch") is not None


def run_stack(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes, then end what was started.

    Where there can be no worker there is nobody to wake up, and no Redis is started; nor is one where the
    settings name a broker.
    """
    if not has_trainer():
        run_api(settings, announce)
    elif settings.broker_url is not None:
        run_api(settings, announce, beside=_worker(settings, settings.broker_url))
    else:
        # Not in the data directory: the path of a socket has room for little more than 100 characters.
        with tempfile.TemporaryDirectory(prefix="fedcs-") as directory:
            url = redis_url(Path(directory))
            beside = _redis_and_worker(
                redis_command(Path(directory)), Path(directory), _worker(settings, url)
            )
            run_api(settings.model_copy(update={"broker_url": url}), announce, beside)


@contextmanager
def _redis_and_worker(command: Sequence[str], directory: Path, worker: Supervised) -> Iterator[None]:
    """The worker ends first: its last jobs may wake others up."""
    with Supervised("redis", command):
        wait_for_redis(directory)
        with worker:
            yield


def _worker(settings: Settings, broker_url: str) -> Supervised:
    return Supervised(
        "worker",
        [sys.executable, "-m", "operator_api", "worker"],
        FEDCS_DATABASE_URL=settings.database_url,
        FEDCS_MODEL_STORE=str(settings.model_store),
        FEDCS_DATA_DIR=str(settings.data_dir),
        FEDCS_BROKER_URL=broker_url,
    )
