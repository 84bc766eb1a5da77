"""The kinds of fault that a storm is made of; each ends by itself, and leaves everything in order."""

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
from tests.faults.storm.disk import Disk
from tests.faults.storm.link import Link
from tests.faults.storm.site import Site
from tests.faults.storm.supervised import Supervised, family
from tests.faults.storm.tempo import Tempo
from trainer_worker.publisher import make_app, message_name

Fault: TypeAlias = Callable[[Tempo, Random], Awaitable[None]]

_MESSAGES = 20
_SLOWEST_S = 0.5


def kinds_for(site: Site) -> Mapping[str, Fault]:
    """Every fault that can befall a site, by its name."""
    faults: dict[str, Fault] = {
        "API process killed": partial(_kill_one, site.apis),
        "all API processes killed": partial(_kill_all, site.apis),
        "worker killed": partial(_kill_one, site.workers),
        "all workers killed": partial(_kill_all, site.workers),
        "Redis killed": partial(_kill_one, [site.redis]),
        "Redis killed, its data lost": partial(_lose_redis, site),
        "PostgreSQL killed": partial(_kill_one, [site.postgres]),
        "PostgreSQL restarted immediately": partial(_restart_postgres, site),
        "a connection's PostgreSQL process killed": partial(_kill_backend, site),
        "API process frozen": partial(_freeze, site.apis),
        "worker frozen": partial(_freeze, site.workers),
        "API process with a wrong clock": partial(_skew, site.apis),
        "worker with a wrong clock": partial(_skew, site.workers),
        "messages delivered twice": partial(_deliver_again, site, late=False),
        "messages delivered late": partial(_deliver_again, site, late=True),
    }
    for link in site.links:
        faults[f"connections cut: {link.name}"] = partial(_cut, link)
        faults[f"connections refused: {link.name}"] = partial(_refuse, link)
        faults[f"connections delayed: {link.name}"] = partial(_delay, link)
        faults[f"connections stalled: {link.name}"] = partial(_stall, link)
    for name, disk in (("model store", site.models_disk), ("database", site.database_disk)):
        if disk.is_small:
            faults[f"disk full: {name}"] = partial(_fill, disk)
    return faults


async def _kill_one(processes: list[Supervised], tempo: Tempo, dice: Random) -> None:
    await dice.choice(processes).down_for(dice.uniform(*tempo.fault_s))


async def _kill_all(processes: list[Supervised], tempo: Tempo, dice: Random) -> None:
    duration_s = dice.uniform(*tempo.fault_s)
    await asyncio.gather(*(process.down_for(duration_s) for process in processes))


async def _lose_redis(site: Site, tempo: Tempo, dice: Random) -> None:
    down = asyncio.create_task(site.redis.down_for(dice.uniform(*tempo.fault_s)))
    await asyncio.sleep(0)
    shutil.rmtree(site.redis_data)
    site.redis_data.mkdir()
    await down


async def _restart_postgres(site: Site, tempo: Tempo, dice: Random) -> None:  # noqa: ARG001 - as all faults
    """An immediate shutdown: it does not wait for anybody, and has to recover when it starts."""
    if site.postgres.pid is not None:
        os.kill(site.postgres.pid, signal.SIGQUIT)


async def _kill_backend(site: Site, tempo: Tempo, dice: Random) -> None:  # noqa: ARG001 - as all faults
    """PostgreSQL then ends all of its connections, and recovers by itself."""
    children = [] if site.postgres.pid is None else family(site.postgres.pid)[1:]
    if children:
        with suppress(ProcessLookupError):
            os.kill(dice.choice(children), signal.SIGKILL)


async def _freeze(processes: list[Supervised], tempo: Tempo, dice: Random) -> None:
    await dice.choice(processes).frozen_for(dice.uniform(*tempo.freeze_s))


async def _skew(processes: list[Supervised], tempo: Tempo, dice: Random) -> None:
    """Until its next start the process has a clock that is ahead or behind."""
    process = dice.choice(processes)
    process.next_skew_s = dice.choice((1, -1)) * dice.uniform(*tempo.skew_s)
    await process.down_for(0.0)


async def _deliver_again(site: Site, tempo: Tempo, dice: Random, *, late: bool) -> None:
    """Tell workers again of jobs of all states: at once, or after they have changed."""
    with suppress(SQLAlchemyError, OSError):  # one of the two is away just now
        found = await asyncio.to_thread(_newest_jobs, site.database_url)
        if late:
            await asyncio.sleep(dice.uniform(*tempo.fault_s))
        await asyncio.to_thread(_publish, site.broker_url, found)


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


async def _cut(link: Link, tempo: Tempo, dice: Random) -> None:  # noqa: ARG001 - as all faults
    link.cut()


async def _refuse(link: Link, tempo: Tempo, dice: Random) -> None:
    link.is_down = True
    link.cut()
    await _heal_after(link, dice.uniform(*tempo.fault_s))


async def _delay(link: Link, tempo: Tempo, dice: Random) -> None:
    link.delay_s = dice.uniform(0.02, _SLOWEST_S)
    await _heal_after(link, dice.uniform(*tempo.fault_s))


async def _stall(link: Link, tempo: Tempo, dice: Random) -> None:
    link.stall()
    await _heal_after(link, dice.uniform(*tempo.fault_s))


async def _heal_after(link: Link, duration_s: float) -> None:
    try:
        await asyncio.sleep(duration_s)
    finally:
        link.heal()


async def _fill(disk: Disk, tempo: Tempo, dice: Random) -> None:
    try:
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(dice.uniform(*tempo.fault_s))
    finally:
        disk.empty()
