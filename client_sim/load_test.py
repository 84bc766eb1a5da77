"""Load test: thousands of clients report, poll and upload to a running service at the same time."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from client_sim.connect import allow_open_files
from client_sim.fleet import Fleet
from client_sim.load_report import (
    CallRecorder,
    LoadReport,
    MemorySample,
    sample_memory,
    summarize_latency,
    summarize_memory,
    summarize_operations,
)
from client_sim.load_round import LoadDevices, LoadRounds
from client_sim.runs import fleet_task, start_task, task_group
from client_sim.scenario import (
    MAX_CLIENTS,
    MAX_MODEL_BYTES,
    MIN_MODEL_BYTES,
    CellSettings,
    NetworkCell,
    Scenario,
    SyntheticUpdateSettings,
)
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock
from services.errors import FedCSError, SettingsError

_DAY_S = 24 * 3600.0
_SCHEDULED_BYTES = 1_000_000
"""The size that rounds are scheduled for, so that ``model_bytes`` does not change the number of uploads."""
_LIMITS: dict[str, tuple[float, float]] = {
    "cells": (1, 1000),
    "clients": (1, MAX_CLIENTS),
    "duration_s": (1, _DAY_S),
    "report_every_s": (0.1, _DAY_S),
    "round_every_s": (0.1, _DAY_S),
    "asked_per_round": (1, MAX_CLIENTS),
    "round_deadline_s": (1, 1e6),
    "model_bytes": (MIN_MODEL_BYTES, MAX_MODEL_BYTES),
    "long_polls": (0, MAX_CLIENTS),
    "poll_wait_s": (1, 60),
}


@dataclass(frozen=True)
class LoadSettings:
    """The load. The defaults suit two cores shared by service, worker and load test."""

    clients: int = 5000
    cells: int = 1
    """The clients are spread over so many cells, ``load-1``, ``load-2`` and so on; 1: the default cell."""
    duration_s: float = 120.0
    report_every_s: float = 20.0
    """The interval between the reports of a client."""
    round_every_s: float = 5.0
    """The interval between rounds; a round that takes longer delays the next."""
    asked_per_round: int = 500
    """Candidates in each round; the deadline limits how many of them are selected."""
    round_deadline_s: float = 45.0
    """In simulated time."""
    model_bytes: int = 1_000_000
    update_encoding: str = "float32"
    model_encoding: str = "float32"
    long_polls: int = 100
    """Clients that long-poll; the load test itself notifies the others."""
    poll_wait_s: float = 25.0
    keep_clients: bool = False
    """Do not remove the clients after the test."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise SettingsError(f"{name} is {value:g}: it must be from {least:g} to {most:g}")
        if self.cells > self.clients:
            raise SettingsError(f"{self.cells} cells: there are only {self.clients} clients")
        if self.long_polls > self.clients:
            raise SettingsError(f"{self.long_polls} long polls: there are only {self.clients} clients")
        if self.round_every_s > self.duration_s:
            raise SettingsError(f"the test of {self.duration_s:g} s is too short for a round")

    def scenario(self) -> Scenario:
        """The cell and the task."""
        task = TaskRequest(
            name="load test",
            clock=Clock.SIMULATED,
            request_fraction=min(1.0, self.asked_per_round / self.clients),
            round_deadline_s=self.round_deadline_s,
            model_size_bytes=_SCHEDULED_BYTES,
            update_encoding=self.update_encoding,
            model_encoding=self.model_encoding,
            seed=self.seed,
        )
        return Scenario(
            name="load test",
            seed=self.seed,
            rounds=1,
            cell=CellSettings(clients=self.clients),
            cells=[NetworkCell(cell_id=f"load-{number + 1}") for number in range(self.cells)]
            if self.cells > 1
            else [],
            task=task,
            synthetic_update=SyntheticUpdateSettings(model_bytes=self.model_bytes),
        )


_DRAIN_S = 10.0
"""How long to wait for responses after the end."""
_TICK_S = 1.0
_CLEAN_UP_S = 60.0
"""Clients that are not removed in this time stay enrolled; the report gives their number."""
_OTHER_FILES = 200


@dataclass(frozen=True)
class LoadProgress:
    """The progress of a load test."""

    stage: str
    """The current step."""
    elapsed_s: float = 0.0
    answers: int = 0
    errors: int = 0
    rounds: int = 0
    resident_mb: float | None = None
    """The service's memory, if it is known."""

    @property
    def note(self) -> str:
        """The step, and what happened so far."""
        if not self.elapsed_s:
            return self.stage
        memory = "" if self.resident_mb is None else f", service {self.resident_mb:.0f} MB"
        return f"{self.stage}, {self.answers} answers, {self.errors} errors, {self.rounds} rounds{memory}"


async def run_load_test(
    api: AsyncApi, settings: LoadSettings, on_tick: Callable[[LoadProgress], None]
) -> LoadReport:
    """Run a load test and return its report.

    The ``api`` must not retry (``retry_timeout_s=0``). Errors before the load starts are raised; later
    ones are counted. If it is cancelled during the load, it returns the report so far.
    """
    allow_open_files(settings.clients + settings.long_polls + _OTHER_FILES)
    scenario = settings.scenario()
    fleet = Fleet.draw(scenario, f"load-{uuid.uuid4().hex[:8]}")
    on_tick(LoadProgress("enrolling clients"))
    task_id = None
    try:
        await fleet.enrol(api)
        await fleet.report(api)
        task = fleet_task(fleet, scenario.task, training=False)
        task_id = await start_task(api, scenario, task, training=False)
        load = _Load(api, settings, fleet, task_id, on_tick)
        await load.run()
    finally:
        on_tick(LoadProgress("cleaning up"))
        left = await _clean_up(api, settings, fleet, task_id)
    return load.report(left)


class _Load:
    """A load test in progress."""

    def __init__(
        self,
        api: AsyncApi,
        settings: LoadSettings,
        fleet: Fleet,
        task_id: str,
        on_tick: Callable[[LoadProgress], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._on_tick = on_tick
        self._samples: list[MemorySample] = []
        self._recorder = CallRecorder(api, settings.duration_s)
        self._rounds = LoadRounds(api, self._recorder, task_id, settings.round_every_s)
        self._duration_s = settings.duration_s
        self._ended_early = False

    async def run(self) -> None:
        """Generate load until the time is over or this is cancelled."""
        try:
            await self._run_with_monitors()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None, "a coroutine runs in a task"
            task.uncancel()
            self._ended_early = True
            self._duration_s = min(self._elapsed_s, self._duration_s)

    def report(self, clients_left: int) -> LoadReport:
        """The report so far."""
        return LoadReport(
            settings=asdict(self._settings),
            duration_s=self._duration_s,
            ended_early=self._ended_early,
            rounds=self._rounds.aggregated,
            operations=summarize_operations(self._recorder, self._duration_s),
            lag=summarize_latency(self._recorder.lags_s),
            memory=summarize_memory(self._samples, self._duration_s),
            clients_left=clients_left,
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._recorder.starts_s

    async def _run_with_monitors(self) -> None:
        """Generate load while following events and showing progress."""
        async with task_group() as group:
            monitors = [group.create_task(monitor) for monitor in (self._rounds.follow(), self._tick())]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.duration_s + _DRAIN_S):
                    await self._generate_load()
            for monitor in monitors:
                monitor.cancel()

    async def _generate_load(self) -> None:
        settings = self._settings
        devices = LoadDevices(
            self._recorder,
            self._fleet,
            self._rounds,
            settings.report_every_s,
            settings.poll_wait_s,
            terms=settings.scenario().task,
        )

        def is_polling(client_id: str) -> bool:
            return self._fleet.number(client_id) < settings.long_polls

        async with task_group() as load:
            load.create_task(sample_memory(self._recorder, self._samples))
            load.create_task(self._rounds.run_rounds(devices.participate, is_polling))
            for number in range(settings.long_polls):
                load.create_task(devices.poll_loop(number))
            for number in range(settings.clients):
                load.create_task(devices.report_loop(number))

    async def _tick(self) -> None:
        while True:
            self._on_tick(
                LoadProgress(
                    "under load",
                    min(self._elapsed_s, self._settings.duration_s),
                    self._recorder.answers,
                    self._recorder.errors,
                    self._rounds.aggregated,
                    self._samples[-1].resident_mb if self._samples else None,
                )
            )
            await asyncio.sleep(_TICK_S)


async def _clean_up(api: AsyncApi, settings: LoadSettings, fleet: Fleet, task_id: str | None) -> int:
    """Cancel the task and remove the clients; return how many clients are left."""
    if task_id is not None:
        with suppress(FedCSError, TimeoutError):
            await asyncio.wait_for(api.send(endpoints.cancel_task(task_id)), _CLEAN_UP_S)
    return len(fleet) if settings.keep_clients else await fleet.remove(api, _CLEAN_UP_S)
