"""A load test: thousands of clients that report, poll and upload at a running service, all at the same time.

Each is an asyncio task with a key of its own. Reports are due at moments of their own, and their latency
counts from then, so a service that falls behind is seen to do so (``client_sim.load_latency``); a client's
download and upload, and the rounds, come one after the other, as they do in life.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.load_devices import LoadDevices
from client_sim.load_latency import Measured
from client_sim.load_report import LoadReport, latency_figures, operation_figures
from client_sim.load_round import LoadRounds
from client_sim.load_settings import LoadSettings
from client_sim.open_files import allow_open_files
from client_sim.server_memory import MemorySample, memory_figures, sample_memory
from client_sim.task_start import begin_task, task_of
from client_sim.together import together
from services.errors import FedCSError

_DRAIN_S = 10.0
"""How long after the end answers are awaited."""
_TICK_S = 1.0
_REMOVERS = 4
_CLEAN_UP_S = 60.0
"""So long may it take; a client takes about 5 ms. What is not removed by then is left, and told."""
_OTHER_FILES = 200


@dataclass(frozen=True)
class LoadProgress:
    """How far a load test is."""

    stage: str
    """What is being done, in a few words."""
    elapsed_s: float = 0.0
    answers: int = 0
    errors: int = 0
    rounds: int = 0
    resident_mb: float | None = None
    """The service's memory, as far as it tells."""

    def text(self, duration_s: float) -> str:
        """In a line."""
        if not self.elapsed_s:
            return self.stage
        memory = "" if self.resident_mb is None else f", service {self.resident_mb:.0f} MB"
        return (
            f"{self.stage}: {self.elapsed_s:.0f} of {duration_s:.0f} s, {self.answers} answers, "
            f"{self.errors} errors, {self.rounds} rounds{memory}"
        )


async def run_load_test(
    api: AsyncApi, settings: LoadSettings, on_tick: Callable[[LoadProgress], None]
) -> LoadReport:
    """Put the service under load and tell what came of it.

    The ``api`` has no patience (``patience_s=0``): a call that had to be sent again is an error here. What
    goes wrong before the load begins is raised; from then on it is counted. Cancelled from then on, this ends
    early, and returns what was measured so far.
    """
    allow_open_files(settings.clients + settings.long_polls + _OTHER_FILES)
    scenario = settings.scenario()
    fleet = Fleet.draw(scenario, f"load-{uuid.uuid4().hex[:8]}")
    on_tick(LoadProgress("enrolling clients"))
    await fleet.enrol(api)
    task_id = None
    try:
        await fleet.report(api)
        task = task_of(fleet, scenario.task, training=False)
        task_id = await begin_task(api, scenario, task, training=False)
        load = _Load(api, settings, fleet, task_id, on_tick)
        await load.run()
    finally:
        on_tick(LoadProgress("cleaning up"))
        left = await _clean_up(api, settings, fleet, task_id)
    return load.report(left)


class _Load:
    """The load itself, while it lasts."""

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
        self._measured = Measured(api, settings.duration_s)
        self._rounds = LoadRounds(api, self._measured, task_id, settings.round_every_s)
        self._duration_s = settings.duration_s
        self._ended_early = False

    async def run(self) -> None:
        """Make the load until its time is over or this is cancelled."""
        try:
            await self._run_beside()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None, "this is awaited by one"
            task.uncancel()
            self._ended_early = True
            self._duration_s = min(self._elapsed_s, self._duration_s)

    def report(self, clients_left: int) -> LoadReport:
        """What was measured."""
        return LoadReport(
            settings=asdict(self._settings),
            duration_s=self._duration_s,
            ended_early=self._ended_early,
            rounds=self._rounds.aggregated,
            operations=operation_figures(self._measured, self._duration_s),
            lag=latency_figures(self._measured.lags_s),
            memory=memory_figures(self._samples, self._duration_s),
            clients_left=clients_left,
        )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._measured.begins_s

    async def _run_beside(self) -> None:
        """The load, and beside it those who watch it, who go when it is over."""
        async with together() as watchers:
            watching = [watchers.create_task(watch) for watch in (self._rounds.follow(), self._tick())]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.duration_s + _DRAIN_S):
                    await self._make_load()
            for watcher in watching:
                watcher.cancel()

    async def _make_load(self) -> None:
        settings = self._settings
        devices = LoadDevices(
            self._measured, self._fleet, self._rounds, settings.report_every_s, settings.poll_wait_s
        )

        def is_polling(client_id: str) -> bool:
            return self._fleet.number(client_id) < settings.long_polls

        async with together() as load:
            load.create_task(sample_memory(self._measured, self._samples))
            load.create_task(self._rounds.keep_going(devices.take_part, is_polling))
            for number in range(settings.long_polls):
                load.create_task(devices.keep_polling(number))
            for number in range(settings.clients):
                load.create_task(devices.keep_reporting(number))

    async def _tick(self) -> None:
        while True:
            self._on_tick(
                LoadProgress(
                    "under load",
                    min(self._elapsed_s, self._settings.duration_s),
                    self._measured.answers,
                    self._measured.errors,
                    self._rounds.aggregated,
                    self._samples[-1].resident_mb if self._samples else None,
                )
            )
            await asyncio.sleep(_TICK_S)


async def _clean_up(api: AsyncApi, settings: LoadSettings, fleet: Fleet, task_id: str | None) -> int:
    """Cancel the task and remove the clients, as far as the service lets it; how many clients are left."""
    numbers, removed = iter(range(len(fleet))), []

    async def remove() -> None:
        with suppress(FedCSError):
            for number in numbers:
                await api.send(calls.remove_client(fleet.client_id(number)))
                removed.append(number)

    with suppress(FedCSError, TimeoutError):
        async with asyncio.timeout(_CLEAN_UP_S):
            if task_id is not None:
                await api.send(calls.cancel_task(task_id))
            if not settings.keep_clients:
                await asyncio.gather(*(remove() for _ in range(_REMOVERS)))
    return len(fleet) - len(removed)
