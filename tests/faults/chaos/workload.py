"""The workload of a chaos test: simulated cells, wall-clock devices, and a reader of all events."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from client_sim.runs import task_group
from client_sim.scenario import Behaviour, CellSettings, Scenario
from client_sim.simulated_run import run_simulated
from client_sim.synthetic_updates import SyntheticUpdates
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.assignments import TrainAssignment
from services.contract.clients import EnrolmentRequest
from services.contract.common import EventResponse
from services.contract.reports import ReportRequest
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock
from tests.faults.chaos.small_network import SMALL
from tests.faults.chaos.timing import Timing

_SIMULATED_DEADLINE_S = 600.0
_DEVICES = 5
_POLL_S = 5.0
_PAUSE_S = 0.2
_REPORT_EVERY_S = 0.25


@dataclass
class Workload:
    """The workload of one chaos test."""

    api: AsyncApi
    timing: Timing
    seed: int
    goes_on: Callable[[], bool]
    """Whether another task is to be begun."""
    events: list[EventResponse] = field(default_factory=list)
    """All that were told, in the order in which they came."""
    _throughputs: "itertools.count[int]" = field(default_factory=lambda: itertools.count(10**9))
    """Each report has another one, to be known by."""

    async def follow(self, ready: asyncio.Event) -> None:
        """Watch the events, for ever."""
        async with self.api.events() as events:
            ready.set()
            async for event in events:
                self.events.append(event)

    async def simulate(self, cell: str) -> None:
        """Play one task after another by the simulated clock; workers train."""
        for number in itertools.count(1):
            if not self.goes_on():
                return
            scenario = Scenario(
                name=cell,
                seed=self.seed + number,
                cell=CellSettings(clients=6, data_samples=(40, 120)),
                behaviour=Behaviour(uncertainty=0.1, dropout=0.1),
                task=TaskRequest(
                    name=f"{cell}, {number}",
                    model=SMALL,
                    dataset="generated",
                    local_epochs=1,
                    batch_size=20,
                    learning_rate=0.1,
                    round_deadline_s=_SIMULATED_DEADLINE_S,
                    final_deadline_s=_SIMULATED_DEADLINE_S * self.timing.simulated_rounds,
                    request_fraction=0.6,
                    clock=Clock.SIMULATED,
                    seed=self.seed + number,
                ),
            )
            await run_simulated(
                self.api, scenario, name=f"{cell}-{number}", training=True, on_round=lambda _: None
            )

    async def run_wall_clock_tasks(self) -> None:
        """Let devices take part in one wall-clock task after another, whose rounds the service opens."""
        enrolled = await self.api.send(
            endpoints.enrol_clients(
                [EnrolmentRequest(client_id=f"phone-{n}", labels={"by": "wall"}) for n in range(_DEVICES)]
            )
        )
        async with task_group() as group:
            devices = [
                group.create_task(self._live(number, client.client_id, client.api_key))
                for number, client in enumerate(enrolled.clients)
            ]
            while self.goes_on():
                await self._wall_task()
            for device in devices:
                device.cancel()

    async def post_reports(self) -> None:
        """Post reports without end: the time of each shows whether the service answers."""
        enrolled = await self.api.send(
            endpoints.enrol_clients([EnrolmentRequest(client_id="reporting-client")])
        )
        while True:
            await self._report("reporting-client", enrolled.clients[0].api_key)
            await asyncio.sleep(_REPORT_EVERY_S)

    async def _wall_task(self) -> None:
        task = TaskRequest(
            name="by the wall",
            model=SMALL,
            dataset="generated",
            round_deadline_s=self.timing.wall_round_s,
            final_deadline_s=self.timing.wall_task_s,
            report_window_s=self.timing.wall_round_s / 8,
            request_fraction=1.0,
            clock=Clock.WALL,
            auto_advance=True,
            labels={"by": "wall"},
        )
        task_id = (await self.api.send(endpoints.create_task(task))).task_id
        while (found := await self.api.send(endpoints.get_task(task_id))).state == "initializing":
            await asyncio.sleep(_PAUSE_S)
        if found.state == "ready":
            await self.api.send(endpoints.open_round(task_id))
        while (await self.api.send(endpoints.get_task(task_id))).state == "running":
            await asyncio.sleep(_PAUSE_S)

    async def _live(self, number: int, client_id: str, key: str) -> None:
        """A device: reports when it is asked to, trains in no time, and uploads."""
        done: set[tuple[str, str]] = set()
        known = None
        while True:
            found = await self.api.send(endpoints.assignments(_POLL_S, known), key=key)
            new = [item for item in found.assignments if (item.kind, item.round_id) not in done]
            for assignment in new:
                if isinstance(assignment, TrainAssignment):
                    await self._take_part(assignment.round_id, number, client_id, key)
                else:
                    await self._report(client_id, key)
                done.add((assignment.kind, assignment.round_id))
            known = found

    async def _take_part(self, round_id: str, number: int, client_id: str, key: str) -> None:
        model = await self.api.send(endpoints.round_model(round_id), key=key)
        update = SyntheticUpdates(model).of(number)
        try:
            await self.api.send(
                endpoints.upload_update(round_id, client_id, update, 10 * (number + 1)), key=key
            )
        except ApiError as refused:
            if refused.status != 409:  # else the round has ended meanwhile
                raise

    async def _report(self, client_id: str, key: str) -> None:
        report = ReportRequest(
            client_id=client_id,
            throughput_bps=float(next(self._throughputs)),
            compute_samples_per_s=1e6,
            data_samples=100,
        )
        await self.api.send(endpoints.post_report(report), key=key)
