"""A storm: while tasks train, fault follows on fault; then all must be as if there had been none."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from client_sim import calls
from client_sim.api_client import AsyncApi
from services.domain.jobs import JobState
from services.storage.database import Database
from services.storage.tables import event_counter, jobs, model_versions, tasks
from tests.faults.storm.callers import Callers
from tests.faults.storm.checker import Evidence, find_faults
from tests.faults.storm.kinds import kinds_for
from tests.faults.storm.ledger import Ledger, WitnessedTransport
from tests.faults.storm.site import Site, running_site
from tests.faults.storm.summary import Happened, Storm, summarize
from tests.faults.storm.tempo import Tempo
from tests.running_service import OPERATOR_KEY

_PATIENCE_S = 600.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class Aftermath:
    """What is there after a storm: the evidence, what the checker found in it, and a summary."""

    evidence: Evidence
    storm: Storm
    summary: str


@asynccontextmanager
async def weathered(
    directory: Path, *, seed: int, duration_s: float, tempo: Tempo, say: Callable[[str], None]
) -> AsyncIterator[Aftermath]:
    """Start a site, let a storm rage for so long, wait for calm, and look at what is left."""
    kept = directory / "kept"
    kept.mkdir(parents=True)
    ledger = Ledger(kept)
    transport = WitnessedTransport(ledger)
    async with (
        running_site(directory, tempo, Random(seed)) as site,
        AsyncApi(site.url, OPERATOR_KEY, patience_s=_PATIENCE_S, transport=transport) as api,
    ):
        database = Database(site.database_url)
        say("starting two API processes, two workers, PostgreSQL and Redis")
        await api.send(calls.readiness())
        weather = _Weather(site, tempo, seed, duration_s, say)
        callers = Callers(api, tempo, seed, goes_on=lambda: not weather.is_over)
        settled_s, failures = await _live_through(weather, callers, database)
        models = await _fetch_models(api, database, directory / "models")
        evidence = Evidence(database, ledger, callers.events, models, tempo.overdue_s)
        storm = Storm(
            seed=seed,
            duration_s=duration_s,
            tempo=tempo,
            happened=weather.happened,
            left_out=weather.left_out,
            starts={process.name: process.starts for process in site.processes},
            settled_s=settled_s,
            faults=[*failures, *find_faults(evidence)],
        )
        try:
            yield Aftermath(evidence, storm, summarize(storm, ledger, database))
        finally:
            database.close()


@dataclass
class _Weather:
    """The faults of a storm, one after another; every kind comes once before any comes again."""

    site: Site
    tempo: Tempo
    seed: int
    duration_s: float
    say: Callable[[str], None]
    is_over: bool = False
    happened: list[Happened] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        disks = {"model store": self.site.models_disk, "database": self.site.database_disk}
        return [f"disk full: {name}" for name, disk in disks.items() if not disk.is_small]

    async def rage(self) -> None:
        kinds, order = kinds_for(self.site), Random(self.seed)
        began_s = time.monotonic()
        deck: list[str] = []
        while time.monotonic() - began_s < self.duration_s:
            # Each has dice of its own: how many a fault needs depends on what it finds.
            dice = Random(f"{self.seed} {len(self.happened)}")
            await asyncio.sleep(dice.uniform(*self.tempo.pause_s))
            deck = deck or order.sample(sorted(kinds), len(kinds))
            kind = deck.pop()
            fault_began_s = time.monotonic()
            await kinds[kind](self.tempo, dice)
            self.happened.append(Happened(kind, fault_began_s, time.monotonic()))
            self.say(
                f"{fault_began_s - began_s:6.0f} s  {len(self.happened):4}  {kind} "
                f"({time.monotonic() - fault_began_s:.1f} s)"
            )
        self.is_over = True


async def _live_through(weather: _Weather, callers: Callers, database: Database) -> tuple[float, list[str]]:
    """Let the callers live through the storm; how long after it all had ended, and who failed."""
    failures: list[str] = []

    async def guarded(name: str, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
        except Exception as error:
            weather.say(f"{name} failed: {error!r}")
            failures.append(f"{name} failed: {error!r}")

    watching = asyncio.Event()
    endless = [asyncio.create_task(guarded("who watches the events", callers.follow(watching)))]
    await watching.wait()
    endless.append(asyncio.create_task(guarded("the heartbeat", callers.beat())))
    lives = [
        asyncio.create_task(guarded("the wall-clock cell", callers.live_by_the_wall())),
        *(asyncio.create_task(guarded(cell, callers.simulate(cell))) for cell in ("north", "south")),
    ]
    await weather.rage()
    ended_s = time.monotonic()
    weather.say("the storm is over; the tasks go on to their ends")
    await asyncio.wait(lives, timeout=weather.tempo.settle_s)
    settled_s = time.monotonic() - ended_s
    await _calm(database, callers, weather.tempo.settle_s)
    for life in (*endless, *lives):
        life.cancel()
    await asyncio.gather(*endless, *lives, return_exceptions=True)
    return settled_s, failures


async def _calm(database: Database, callers: Callers, within_s: float) -> None:
    """Wait until workers have nothing to do and all that happened has been told; no longer than this."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_S)
        with suppress(SQLAlchemyError), database.engine.connect() as connection:
            unfinished = select(jobs.c.job_id).where(jobs.c.state.in_((JobState.WAITING, JobState.LEASED)))
            last = connection.execute(select(event_counter.c.last_number)).scalar_one()
            if not connection.execute(unfinished).all() and callers.events[-1].number == last:
                return


async def _fetch_models(api: AsyncApi, database: Database, directory: Path) -> dict[str, Path]:
    """Every version of every model, through the API; by digest."""
    directory.mkdir()
    joined = select(tasks.c.task_id, model_versions).join(
        model_versions, model_versions.c.task_serial == tasks.c.serial
    )
    with database.engine.connect() as connection:
        versions = connection.execute(joined).all()
    files = {}
    for version in versions:
        path = files[version.digest] = directory / version.digest
        path.write_bytes(await api.send(calls.get_model(version.task_id, version.version)))
    return files
