"""The kinds of fault that are injected; each ends by itself and puts everything back in order."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeAlias

from sqlalchemy import NullPool, create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import QUEUES
from services.storage.tables import jobs
from tests.faults.chaos.deployment import Deployment
from tests.faults.chaos.disk import Disk
from tests.faults.chaos.supervised_process import SupervisedProcess, family
from tests.faults.chaos.tcp_proxy import TcpProxy
from tests.faults.chaos.timing import Timing
from trainer_worker.publisher import make_app, message_name

Fault: TypeAlias = Callable[[Timing, Random], Awaitable[None]]

_MESSAGES = 20
_MAX_DELAY_S = 0.5


def kinds_for(deployment: Deployment) -> Mapping[str, Fault]:
    """Every fault that can befall a deployment, by its name."""
    faults: dict[str, Fault] = {
        "API process killed": partial(_kill_one, deployment.apis),
        "all API processes killed": partial(_kill_all, deployment.apis),
        "worker killed": partial(_kill_one, deployment.workers),
        "all workers killed": partial(_kill_all, deployment.workers),
        "Redis killed": partial(_kill_one, [deployment.redis]),
        "Redis killed, its data lost": partial(_lose_redis, deployment),
        "PostgreSQL killed": partial(_kill_one, [deployment.postgres]),
        "PostgreSQL restarted immediately": partial(_restart_postgres, deployment),
        "a connection's PostgreSQL process killed": partial(_kill_backend, deployment),
        "API process frozen": partial(_freeze, deployment.apis),
        "worker frozen": partial(_freeze, deployment.workers),
        "API process with a wrong clock": partial(_skew, deployment.apis),
        "worker with a wrong clock": partial(_skew, deployment.workers),
        "messages delivered twice": partial(_deliver_again, deployment, late=False),
        "messages delivered late": partial(_deliver_again, deployment, late=True),
    }
    for proxy in deployment.proxies:
        faults[f"connections cut: {proxy.name}"] = partial(_cut, proxy)
        faults[f"connections refused: {proxy.name}"] = partial(_refuse, proxy)
        faults[f"connections delayed: {proxy.name}"] = partial(_delay, proxy)
        faults[f"connections stalled: {proxy.name}"] = partial(_stall, proxy)
    for name, disk in (("model store", deployment.models_disk), ("database", deployment.database_disk)):
        if disk.is_small:
            faults[f"disk full: {name}"] = partial(_fill, disk)
    return faults


async def _kill_one(processes: list[SupervisedProcess], timing: Timing, rng: Random) -> None:
    await rng.choice(processes).down_for(rng.uniform(*timing.fault_s))


async def _kill_all(processes: list[SupervisedProcess], timing: Timing, rng: Random) -> None:
    duration_s = rng.uniform(*timing.fault_s)
    await asyncio.gather(*(process.down_for(duration_s) for process in processes))


async def _lose_redis(deployment: Deployment, timing: Timing, rng: Random) -> None:
    down = asyncio.create_task(deployment.redis.down_for(rng.uniform(*timing.fault_s)))
    await asyncio.sleep(0)
    shutil.rmtree(deployment.redis_data)
    deployment.redis_data.mkdir()
    await down


async def _restart_postgres(deployment: Deployment, timing: Timing, rng: Random) -> None:  # noqa: ARG001 - as all faults
    """An immediate shutdown: it does not wait for anybody, and has to recover when it starts."""
    if deployment.postgres.pid is not None:
        os.kill(deployment.postgres.pid, signal.SIGQUIT)


async def _kill_backend(deployment: Deployment, timing: Timing, rng: Random) -> None:  # noqa: ARG001 - as all faults
    """PostgreSQL then ends all of its connections, and recovers by itself."""
    children = [] if deployment.postgres.pid is None else family(deployment.postgres.pid)[1:]
    if children:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(children), signal.SIGKILL)


async def _freeze(processes: list[SupervisedProcess], timing: Timing, rng: Random) -> None:
    await rng.choice(processes).frozen_for(rng.uniform(*timing.freeze_s))


async def _skew(processes: list[SupervisedProcess], timing: Timing, rng: Random) -> None:
    """Until its next start the process has a clock that is ahead or behind."""
    process = rng.choice(processes)
    process.next_skew_s = rng.choice((1, -1)) * rng.uniform(*timing.skew_s)
    await process.down_for(0.0)


async def _deliver_again(deployment: Deployment, timing: Timing, rng: Random, *, late: bool) -> None:
    """Tell workers again of jobs of all states: at once, or after they have changed."""
    with suppress(SQLAlchemyError, OSError):  # one of the two is away just now
        found = await asyncio.to_thread(_newest_jobs, deployment.database_url)
        if late:
            await asyncio.sleep(rng.uniform(*timing.fault_s))
        await asyncio.to_thread(_publish, deployment.broker_url, found)


def _newest_jobs(database_url: str) -> list[tuple[str, str, str]]:
    engine = create_engine(database_url, poolclass=NullPool)
    query = select(jobs.c.job_id, jobs.c.kind).order_by(jobs.c.serial.desc()).limit(_MESSAGES)
    with engine.connect() as connection:
        return [(row.job_id, message_name(row.kind), QUEUES[row.kind]) for row in connection.execute(query)]


def _publish(broker_url: str, messages: list[tuple[str, str, str]]) -> None:
    app = make_app(broker_url)
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=2)
        for job_id, name, queue in messages:
            app.send_task(name, args=[job_id], queue=queue, connection=connection, retry=False)


async def _cut(proxy: TcpProxy, timing: Timing, rng: Random) -> None:  # noqa: ARG001 - as all faults
    proxy.cut()


async def _refuse(proxy: TcpProxy, timing: Timing, rng: Random) -> None:
    proxy.is_down = True
    proxy.cut()
    await _heal_after(proxy, rng.uniform(*timing.fault_s))


async def _delay(proxy: TcpProxy, timing: Timing, rng: Random) -> None:
    proxy.delay_s = rng.uniform(0.02, _MAX_DELAY_S)
    await _heal_after(proxy, rng.uniform(*timing.fault_s))


async def _stall(proxy: TcpProxy, timing: Timing, rng: Random) -> None:
    proxy.stall()
    await _heal_after(proxy, rng.uniform(*timing.fault_s))


async def _heal_after(proxy: TcpProxy, duration_s: float) -> None:
    try:
        await asyncio.sleep(duration_s)
    finally:
        proxy.heal()


async def _fill(disk: Disk, timing: Timing, rng: Random) -> None:
    try:
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(rng.uniform(*timing.fault_s))
    finally:
        disk.empty()
