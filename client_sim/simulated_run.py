"""Runs in simulated time: rounds follow each other as fast as the machine allows.

The service schedules; ``round_play`` tells when each device's upload ends in round time; workers train in the
devices' places. An update is sent as soon as it is there, with the moment at which the device would have sent
it. The service averages in the order of the schedule, so it does not matter who is first here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from client_sim import calls
from client_sim.api_client import ApiError, AsyncApi
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord, RunRecord
from client_sim.round_play import Played, play_round, round_rng
from client_sim.scenario import Scenario
from client_sim.stand_in import StandInUpdates
from client_sim.task_start import await_ready, begin_task, cancelled_on_failure, next_of, task_of
from client_sim.together import together
from services.contract.events import EventResponse
from services.contract.rounds import RoundResponse, ScheduleResponse
from services.contract.tasks import TaskResponse
from services.domain.rounds import RoundState
from services.domain.tasks import TaskState

_UPLOADS_AT_ONCE = 4
"""Enough to keep the service busy; each holds a model in memory."""


@dataclass(frozen=True)
class PlayedRound:
    """A round as it was planned, and as it went."""

    number: int
    schedule: ScheduleResponse
    played: Sequence[Played]


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a run; the last round with uploads is kept for a picture."""

    record: RunRecord
    fleet: Fleet
    last_round: PlayedRound | None


async def run_simulated(
    api: AsyncApi,
    scenario: Scenario,
    *,
    name: str,
    training: bool,
    on_round: Callable[[RoundRecord], None],
) -> SimulatedRun:
    """Enrol the fleet under this ``name``, begin the task, and play its rounds."""
    began_s = time.monotonic()
    fleet = Fleet.draw(scenario, name)
    await fleet.enrol(api)
    task = task_of(fleet, scenario.task, training=training)
    task_id = await begin_task(api, scenario, task, training=training)
    async with cancelled_on_failure(api, task_id), api.events(task_id) as events:
        run = _Run(api, scenario, fleet, task_id, events, training)
        await await_ready(api, task_id, events)
        outcome = await run.play(on_round)
    record = RunRecord(scenario, task_id, run.records, outcome, time.monotonic() - began_s)
    return SimulatedRun(record, fleet, run.last_round)


@dataclass
class _Run:
    api: AsyncApi
    scenario: Scenario
    fleet: Fleet
    task_id: str
    events: AsyncIterator[EventResponse]
    training: bool
    records: list[RoundRecord] = field(default_factory=list)
    last_round: PlayedRound | None = None

    async def play(self, on_round: Callable[[RoundRecord], None]) -> str:
        """Play rounds until there are enough, or the task is over; why the run ended."""
        while self.scenario.rounds is None or len(self.records) < self.scenario.rounds:
            await self.fleet.keep_reported(self.api, self.scenario.task.report_max_age_s)
            began_s = time.monotonic()
            opened = await self.api.send(calls.open_round(self.task_id))
            lost = await self._play_round(opened) if opened.state is not RoundState.FAILED else _Lost()
            task = await self._record(opened, lost, began_s)
            on_round(self.records[-1])
            if task.state is not TaskState.RUNNING:
                return task.outcome or f"The task is {task.state.value}."
        return f"{len(self.records)} rounds were asked for."

    async def _play_round(self, opened: RoundResponse) -> "_Lost":
        assert opened.schedule is not None, "simulated rounds are scheduled at once"
        played = play_round(
            opened.schedule, self.scenario.behaviour, round_rng(self.scenario.seed, opened.number)
        )
        self.last_round = PlayedRound(opened.number, opened.schedule, played)
        in_time = {one.client_id: one for one in played if not (one.late or one.dropped)}
        late = [one for one in played if one.late]
        for one in late:
            await self._upload(opened.round_id, one, b"")  # it is refused unread
        failed = await (self._train(opened, in_time) if self.training else self._stand_in(opened, in_time))
        dropped = sum(one.dropped for one in played)
        if dropped or failed:
            await self.api.send(calls.close_round(opened.round_id))
        await self._next_of("round.aggregated", "round.failed", round_id=opened.round_id)
        return _Lost(late=len(late), dropped=dropped + failed)

    async def _train(self, opened: RoundResponse, devices: dict[str, Played]) -> int:
        """Have workers train, and send each update when it is there; how many trainings failed."""
        free = asyncio.Semaphore(_UPLOADS_AT_ONCE)
        failed = 0

        async def fetch_and_upload(training_id: str, device: Played) -> None:
            async with free:
                update = await self.api.send(calls.training_update(training_id))
                await self._upload(opened.round_id, device, update)

        for client_id in devices:
            number = self.fleet.number(client_id)
            await self.api.send(calls.request_training(opened.round_id, client_id, number))
        async with together() as uploads:
            for _ in devices:
                event = await next_of(self.api, self.task_id, self.events, "training.done", "training.failed")
                assert event.client_id is not None, "whose training it is"
                if event.kind == "training.failed":
                    failed += 1
                else:
                    device = devices[event.client_id]
                    uploads.create_task(fetch_and_upload(event.data["training_id"], device))
        return failed

    async def _stand_in(self, opened: RoundResponse, devices: dict[str, Played]) -> int:
        """Send updates that nobody trained; none of them fails."""
        model = await self.api.send(calls.round_model(opened.round_id))
        updates = StandInUpdates(model)
        waiting = iter(devices.values())

        async def upload_some() -> None:
            for device in waiting:
                update = updates.of(self.fleet.number(device.client_id))
                await self._upload(opened.round_id, device, update)

        async with together() as uploads:
            for _ in range(_UPLOADS_AT_ONCE):
                uploads.create_task(upload_some())
        return 0

    async def _upload(self, round_id: str, device: Played, update: bytes) -> None:
        call = calls.upload_update(
            round_id,
            device.client_id,
            update,
            self.fleet.data_samples(device.client_id),
            elapsed_s=device.upload_end_s,
            update_s=device.update_s,
            upload_s=device.upload_s,
        )
        try:
            await self.api.send(call, key=self.fleet.key(device.client_id))
        except ApiError as error:
            if not (device.late and error.problem.cause == "DEADLINE_PASSED"):
                raise

    async def _next_of(self, *kinds: str, round_id: str | None = None) -> EventResponse:
        return await next_of(self.api, self.task_id, self.events, *kinds, round_id=round_id)

    async def _record(self, opened: RoundResponse, lost: "_Lost", began_s: float) -> TaskResponse:
        """Note how a round went; how the task stands after it."""
        ended = (await self.api.send(calls.newest_rounds(self.task_id, 1)))[0]
        accuracy = loss = None
        if ended.state is RoundState.AGGREGATED and self.training:
            evaluated = await self._next_of("model.evaluated")
            accuracy, loss = evaluated.data["accuracy"], evaluated.data["loss"]
        task = await self.api.send(calls.get_task(self.task_id))
        record = RoundRecord(
            number=opened.number,
            asked=opened.asked,
            selected=opened.selected,
            received=ended.received,
            late=lost.late,
            dropped=lost.dropped,
            rejected=opened.selected - ended.received - lost.late - lost.dropped,
            elapsed_s=task.elapsed_s,
            duration_s=ended.duration_s,
            accuracy=accuracy,
            loss=loss,
            wall_s=time.monotonic() - began_s,
        )
        self.records.append(record)
        return task


@dataclass(frozen=True)
class _Lost:
    """Devices whose updates do not come, or come too late."""

    late: int = 0
    dropped: int = 0
