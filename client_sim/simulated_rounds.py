"""Rounds in simulated time: they follow each other as fast as the machine allows.

The service schedules; ``round_play`` tells when each device's upload ends in round time; workers train in the
devices' places. An update is sent as soon as it is there, with the moment at which the device would have sent
it. The service averages in the order of the schedule, so it does not matter who is first here.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from client_sim import calls
from client_sim.api_client import ApiError, AsyncApi
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord
from client_sim.round_play import Played, play_round, round_rng
from client_sim.scenario import Scenario
from client_sim.stand_in import StandInUpdates
from client_sim.task_start import await_ready, next_of
from client_sim.together import together
from services.contract.events import EventResponse
from services.contract.rounds import RoundResponse, ScheduleResponse
from services.contract.tasks import TaskResponse
from services.contract.trainings import TrainingResponse
from services.domain.rounds import OPEN_STATES, UPLOAD_STATES, RoundState, SlotOutcome
from services.domain.tasks import TaskState
from services.domain.trainings import TrainingState

_MOST_UPLOADS, _FEWEST_UPLOADS = 24, 4
"""At once: the service takes many together for little more than one."""
_BYTES_AT_ONCE = 64 * 1024 * 1024
"""Each holds a model in memory."""


@dataclass(frozen=True)
class PlayedRound:
    """A round as it was planned, and as it went."""

    number: int
    schedule: ScheduleResponse
    played: Sequence[Played]


@asynccontextmanager
async def rounds_of(
    api: AsyncApi, scenario: Scenario, fleet: Fleet, task_id: str, *, training: bool
) -> AsyncIterator["Rounds"]:
    """The rounds of a task, to be played."""
    async with api.events(task_id) as events:
        await await_ready(api, task_id, events)
        yield Rounds(api, scenario, fleet, task_id, events, training)


@dataclass
class Rounds:
    """The rounds of a task."""

    api: AsyncApi
    scenario: Scenario
    fleet: Fleet
    task_id: str
    events: AsyncIterator[EventResponse]
    training: bool
    outcome: str | None = None
    """Why the task ended, in a sentence; None while it goes on."""
    last_round: PlayedRound | None = None

    async def play(self, after: int = 0) -> AsyncIterator[RoundRecord]:
        """Play one round after another, from the one after this, until the task ends.

        If the next one was begun already, by a run that was stopped, it is played to its end.
        """
        begun = await self._begun_after(after)
        while self.outcome is None:
            began_s = time.monotonic()
            if begun is None:
                await self.fleet.keep_reported(self.api, self.scenario.task.report_max_age_s)
                opened = await self.api.send(calls.open_round(self.task_id))
            else:
                opened, begun = begun, None
            lost = await self._play_round(opened)
            yield await self._record(opened, lost, began_s)

    async def _begun_after(self, number: int) -> RoundResponse | None:
        """The round after this one, if it was begun; if not, the task may be over."""
        newest = await self.api.send(calls.newest_rounds(self.task_id, 1))
        if newest and newest[0].number > number:
            return await self.api.send(calls.get_round(newest[0].round_id))
        self._look_at(await self.api.send(calls.get_task(self.task_id)))
        return None

    def _look_at(self, task: TaskResponse) -> None:
        if task.state not in (TaskState.READY, TaskState.RUNNING):
            self.outcome = task.outcome or f"The task is {task.state.value}."

    async def _play_round(self, opened: RoundResponse) -> "_Lost":
        if opened.schedule is None:
            return _Lost()  # it failed: simulated rounds are scheduled at once
        played = play_round(
            opened.schedule, self.scenario.behaviour, round_rng(self.scenario.seed, opened.number)
        )
        self.last_round = PlayedRound(opened.number, opened.schedule, played)
        dropped = sum(one.dropped for one in played)
        if opened.state in UPLOAD_STATES:
            failed = await self._send_updates(opened, self.last_round)
            if dropped or failed:
                await self.api.send(calls.close_round(opened.round_id))
            dropped += failed
        if opened.state in OPEN_STATES:
            await self._next_of("round.aggregated", "round.failed", round_id=opened.round_id)
        return _Lost(late=sum(one.late for one in played), dropped=dropped)

    async def _send_updates(self, opened: RoundResponse, round_: PlayedRound) -> int:
        """Send what has not been sent; how many trainings failed."""
        pending = {slot.client_id for slot in round_.schedule.slots if slot.outcome is SlotOutcome.PENDING}
        devices = {
            one.client_id: one for one in round_.played if one.client_id in pending and not one.dropped
        }
        for one in [one for one in devices.values() if one.late]:
            await self._upload(opened.round_id, devices.pop(one.client_id), b"")  # it is refused unread
        if self.training:
            return await self._train(opened, devices)
        await self._stand_in(opened, devices)
        return 0

    async def _train(self, opened: RoundResponse, devices: dict[str, Played]) -> int:
        """Have workers train, and send each update when it is there; how many trainings failed."""
        free = asyncio.Semaphore(_FEWEST_UPLOADS)
        trainings = [
            await self.api.send(
                calls.request_training(opened.round_id, client_id, self.fleet.number(client_id))
            )
            for client_id in devices
        ]
        # What a run that was stopped had asked for may be done by now.
        done = [one for one in trainings if one.state is TrainingState.DONE]
        waiting = {one.training_id: one for one in trainings if one.state is TrainingState.WAITING}
        failed = len(trainings) - len(done) - len(waiting)

        async def fetch_and_upload(training: TrainingResponse) -> None:
            async with free:
                update = await self.api.send(calls.training_update(training.training_id))
                await self._upload(opened.round_id, devices[training.client_id], update)

        async with together() as uploads:
            for training in done:
                uploads.create_task(fetch_and_upload(training))
            while waiting:
                event = await self._next_of("training.done", "training.failed")
                ended = waiting.pop(event.data["training_id"], None)
                if ended is not None and event.kind == "training.done":
                    uploads.create_task(fetch_and_upload(ended))
                elif ended is not None:
                    failed += 1
        return failed

    async def _stand_in(self, opened: RoundResponse, devices: dict[str, Played]) -> None:
        """Send updates that nobody trained."""
        model = await self.api.send(calls.round_model(opened.round_id))
        updates = StandInUpdates(model)
        waiting = iter(devices.values())

        async def upload_some() -> None:
            for device in waiting:
                update = updates.of(self.fleet.number(device.client_id))
                await self._upload(opened.round_id, device, update)

        async with together() as uploads:
            for _ in range(_uploads_at_once(len(model))):
                uploads.create_task(upload_some())

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

    async def _record(self, opened: RoundResponse, lost: "_Lost", began_s: float) -> RoundRecord:
        """Note how a round went, and how the task stands after it."""
        ended = (await self.api.send(calls.newest_rounds(self.task_id, 1)))[0]
        accuracy = loss = None
        if ended.state is RoundState.AGGREGATED and self.training:
            accuracy, loss = await self._evaluation(opened)
        task = await self.api.send(calls.get_task(self.task_id))
        self._look_at(task)
        return RoundRecord(
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

    async def _evaluation(self, opened: RoundResponse) -> tuple[float, float | None]:
        """Accuracy and loss of the model that came of a round."""
        if opened.state is RoundState.AGGREGATED:  # before it was looked at; so its model may be measured
            known = (await self.api.send(calls.task_metrics(self.task_id))).rounds[-1]
            if known.accuracy is not None:
                return known.accuracy, known.loss
        while True:
            event = await self._next_of("model.evaluated")
            if event.data["version"] == opened.model_version + 1:
                return event.data["accuracy"], event.data["loss"]


def _uploads_at_once(model_bytes: int) -> int:
    return min(max(_BYTES_AT_ONCE // model_bytes, _FEWEST_UPLOADS), _MOST_UPLOADS)


@dataclass(frozen=True)
class _Lost:
    """Devices whose updates do not come, or come too late."""

    late: int = 0
    dropped: int = 0
