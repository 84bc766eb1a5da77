"""Chaos test: tasks train while faults are injected; afterwards nothing may be lost or stuck."""

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

from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.domain.jobs import JobState
from services.storage.database import Database
from services.storage.tables import event_counter, jobs, model_versions, tasks
from tests.faults.chaos.checker import Evidence, find_faults
from tests.faults.chaos.deployment import Deployment, running_deployment
from tests.faults.chaos.fault_kinds import kinds_for
from tests.faults.chaos.history import History, RecordingTransport
from tests.faults.chaos.summary import ChaosRun, InjectedFault, summarize
from tests.faults.chaos.timing import Timing
from tests.faults.chaos.workload import Workload
from tests.running_service import OPERATOR_KEY

_PATIENCE_S = 600.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class ChaosResult:
    """The result of a chaos test: the evidence, what the checker found in it, and a summary."""

    evidence: Evidence
    run: ChaosRun
    summary: str


@asynccontextmanager
async def chaos_run(
    directory: Path, *, seed: int, duration_s: float, timing: Timing, say: Callable[[str], None]
) -> AsyncIterator[ChaosResult]:
    """Start a deployment, inject faults for so long, wait until all tasks have ended, and check."""
    kept = directory / "kept"
    kept.mkdir(parents=True)
    history = History(kept)
    transport = RecordingTransport(history)
    async with (
        running_deployment(directory, timing, Random(seed)) as deployment,
        AsyncApi(deployment.url, OPERATOR_KEY, retry_timeout_s=_PATIENCE_S, transport=transport) as api,
    ):
        database = Database(deployment.database_url)
        say("starting two API processes, two workers, PostgreSQL and Redis")
        await api.send(endpoints.readiness())
        injector = _FaultInjector(deployment, timing, seed, duration_s, say)
        workload = Workload(api, timing, seed, goes_on=lambda: not injector.is_over)
        settled_s, failures = await _run_workload(injector, workload, database)
        models = await _fetch_models(api, database, directory / "models")
        evidence = Evidence(database, history, workload.events, models, timing.overdue_s)
        run = ChaosRun(
            seed=seed,
            duration_s=duration_s,
            timing=timing,
            injected=injector.injected,
            left_out=injector.left_out,
            starts={process.name: process.starts for process in deployment.processes},
            settled_s=settled_s,
            faults=[*failures, *find_faults(evidence)],
        )
        try:
            yield ChaosResult(evidence, run, summarize(run, history, database))
        finally:
            database.close()


@dataclass
class _FaultInjector:
    """Injects one fault after another; every kind comes once before any comes again."""

    deployment: Deployment
    timing: Timing
    seed: int
    duration_s: float
    say: Callable[[str], None]
    is_over: bool = False
    injected: list[InjectedFault] = field(default_factory=list)

    @property
    def left_out(self) -> list[str]:
        disks = {"model store": self.deployment.models_disk, "database": self.deployment.database_disk}
        return [f"disk full: {name}" for name, disk in disks.items() if not disk.is_small]

    async def inject_faults(self) -> None:
        kinds, order = kinds_for(self.deployment), Random(self.seed)
        began_s = time.monotonic()
        remaining: list[str] = []
        while time.monotonic() - began_s < self.duration_s:
            # Each has rng of its own: how many a fault needs depends on what it finds.
            rng = Random(f"{self.seed} {len(self.injected)}")
            await asyncio.sleep(rng.uniform(*self.timing.pause_s))
            remaining = remaining or order.sample(sorted(kinds), len(kinds))
            kind = remaining.pop()
            fault_began_s = time.monotonic()
            await kinds[kind](self.timing, rng)
            self.injected.append(InjectedFault(kind, fault_began_s, time.monotonic()))
            self.say(
                f"{fault_began_s - began_s:6.0f} s  {len(self.injected):4}  {kind} "
                f"({time.monotonic() - fault_began_s:.1f} s)"
            )
        self.is_over = True


async def _run_workload(
    injector: _FaultInjector, workload: Workload, database: Database
) -> tuple[float, list[str]]:
    """Run the workload while faults are injected; how long it took to end afterwards, and what failed."""
    failures: list[str] = []

    async def guarded(name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception as error:
            injector.say(f"{name} failed: {error!r}")
            failures.append(f"{name} failed: {error!r}")

    watching = asyncio.Event()
    endless = [asyncio.create_task(guarded("the event listener", workload.follow(watching)))]
    await watching.wait()
    endless.append(asyncio.create_task(guarded("the reporting client", workload.post_reports())))
    finite = [
        asyncio.create_task(guarded("the wall-clock cell", workload.run_wall_clock_tasks())),
        *(asyncio.create_task(guarded(cell, workload.simulate(cell))) for cell in ("north", "south")),
    ]
    await injector.inject_faults()
    ended_s = time.monotonic()
    injector.say("the last fault is over; waiting for the tasks to end")
    await asyncio.wait(finite, timeout=injector.timing.settle_s)
    settled_s = time.monotonic() - ended_s
    await _wait_until_idle(database, workload, injector.timing.settle_s)
    for task in (*endless, *finite):
        task.cancel()
    await asyncio.gather(*endless, *finite, return_exceptions=True)
    return settled_s, failures


async def _wait_until_idle(database: Database, workload: Workload, within_s: float) -> None:
    """Wait until workers have nothing to do and all that injected has been told; no longer than this."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_S)
        with suppress(SQLAlchemyError), database.engine.connect() as connection:
            unfinished = select(jobs.c.job_id).where(jobs.c.state.in_((JobState.WAITING, JobState.LEASED)))
            last = connection.execute(select(event_counter.c.last_number)).scalar_one()
            if not connection.execute(unfinished).all() and workload.events[-1].number == last:
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
        path.write_bytes(await api.send(endpoints.get_model(version.task_id, version.version)))
    return files
