"""Runs on the wall clock: every device of the fleet lives, and rounds take the time they take.

The service schedules; ``round_play`` draws how fast each device really is; each ``device`` then does what it
is asked to at its own moments, on a ``channel`` that it shares with the others of its round.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from client_sim import calls
from client_sim.api_client import ApiError, AsyncApi
from client_sim.device import Announced, Device, MeasuredUpload
from client_sim.fleet import Fleet
from client_sim.open_files import allow_open_files
from client_sim.results import RoundRecord, RunRecord
from client_sim.scenario import Scenario, scaled_task
from client_sim.simulated_rounds import PlayedRound
from client_sim.task_start import await_ready, begin_task, cancelled_on_failure, next_of, task_of
from client_sim.together import together
from client_sim.wall_round import WallRound
from services.contract.events import EventResponse
from services.contract.rounds import RoundResponse
from services.contract.tasks import TaskRequest
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import Clock, TaskState

_OPEN_FILES_BESIDE = 200


@dataclass(frozen=True)
class WallRun:
    """What came of a run; the last round with uploads is kept for a picture, in the time of the wall."""

    record: RunRecord
    """In the time of the scenario, which goes ``time_scale`` times as fast as that of the wall."""
    fleet: Fleet
    last_round: PlayedRound | None
    uploads: Sequence[MeasuredUpload]


async def run_wall(
    api: AsyncApi,
    scenario: Scenario,
    *,
    name: str,
    time_scale: float,
    training: bool,
    on_round: Callable[[RoundRecord], None],
) -> WallRun:
    """Enrol the fleet under this ``name``, begin the task, let the devices live, and open rounds for them."""
    began_s = time.monotonic()
    fleet = Fleet.draw(scenario, name, time_scale)
    task = wall_task(fleet, scenario.task, time_scale, training=training)
    allow_open_files(len(fleet) + _OPEN_FILES_BESIDE)
    await fleet.enrol(api)
    task_id = await begin_task(api, scenario, task, training=training)
    async with cancelled_on_failure(api, task_id), api.events(task_id) as events:
        await await_ready(api, task_id, events)
        async with together() as group:
            run = _Run(api, scenario, fleet, task, task_id, events, time_scale, training, group)
            devices = [run.device(number) for number in range(len(fleet))]
            lives = [group.create_task(device.live()) for device in devices]
            for device in devices:
                await device.is_there.wait()
            outcome = await run.play(on_round)
            for life in lives:
                life.cancel()
    record = RunRecord(scenario, task_id, run.records, outcome, time.monotonic() - began_s)
    return WallRun(record, fleet, run.last_round, run.uploads)


def wall_task(fleet: Fleet, task: TaskRequest, time_scale: float, *, training: bool) -> TaskRequest:
    """The task for these devices on a wall clock that goes so fast; its rounds are opened from here."""
    scaled = task_of(fleet, scaled_task(task, time_scale), training=training)
    return scaled.model_copy(update={"clock": Clock.WALL, "auto_advance": False})


@dataclass
class _Run:
    api: AsyncApi
    scenario: Scenario
    fleet: Fleet
    task: TaskRequest
    task_id: str
    events: AsyncIterator[EventResponse]
    time_scale: float
    training: bool
    group: asyncio.TaskGroup
    records: list[RoundRecord] = field(default_factory=list)
    uploads: list[MeasuredUpload] = field(default_factory=list)
    last_round: PlayedRound | None = None
    _announced: Announced = field(default_factory=Announced)

    def device(self, number: int) -> Device:
        """The device of this number."""
        return Device(
            self.api,
            self.fleet,
            number,
            task_id=self.task_id,
            rounds=self._announced,
            on_upload=self.uploads.append,
        )

    async def play(self, on_round: Callable[[RoundRecord], None]) -> str:
        """Open rounds until there are enough, or the task is over; why the run ended."""
        while self.scenario.rounds is None or len(self.records) < self.scenario.rounds:
            await self.fleet.keep_reported(self.api, self.task.report_max_age_s)
            began_s = time.monotonic()
            try:
                opened = await self.api.send(calls.open_round(self.task_id))
            except ApiError as refused:
                if refused.problem.cause == "TASK_OVER":  # time passes between the rounds, too
                    return refused.problem.detail
                raise
            self.records.append(await self._play_round(opened, began_s))
            on_round(self.records[-1])
            task = await self.api.send(calls.get_task(self.task_id))
            if task.state is not TaskState.RUNNING:
                return task.outcome or f"The task is {task.state.value}."
        return f"{len(self.records)} rounds were asked for."

    async def _play_round(self, opened: RoundResponse, began_s: float) -> RoundRecord:
        if opened.state is RoundState.REQUESTING:
            await self._next_of(opened.round_id, "round.scheduled", "round.failed")
            opened = await self.api.send(calls.get_round(opened.round_id))
        if opened.state is RoundState.FAILED:  # nobody could be selected; it costs its time all the same
            await asyncio.sleep(self.task.round_deadline_s)
            return await self._record(opened, began_s, None)
        round_ = WallRound(opened, self.scenario)
        self.last_round = PlayedRound(round_.number, round_.schedule, round_.played)
        self._announced.announce(round_)
        beside = [self.group.create_task(self._close_without_deadline(round_))]
        if self.training:
            beside.append(self.group.create_task(self._have_trained(round_)))
        ended = await self._next_of(round_.round_id, "round.aggregated", "round.failed")
        for one in beside:
            one.cancel()
        evaluated = None
        if ended.kind == "round.aggregated" and self.task.dataset is not None:
            evaluated = await next_of(self.api, self.task_id, self.events, "model.evaluated")
        round_.pass_over_absent()
        await round_.settled()  # those who are late are still uploading
        record = await self._record(opened, began_s, evaluated)
        self._announced.withdraw(round_)
        round_.end()
        return record

    async def _next_of(self, round_id: str, *kinds: str) -> EventResponse:
        return await next_of(self.api, self.task_id, self.events, *kinds, round_id=round_id)

    async def _close_without_deadline(self, round_: WallRound) -> None:
        """End a round that has no deadline when no more updates will come."""
        if not round_.has_deadline:
            await round_.settled()
            await self.api.send(calls.close_round(round_.round_id))

    async def _have_trained(self, round_: WallRound) -> None:
        """Ask for the training of those who will be in time, in upload order."""
        for one in round_.played:
            if one.late or one.dropped:
                continue
            call = calls.request_training(round_.round_id, one.client_id, self.fleet.number(one.client_id))
            try:
                training = await self.api.send(call)
            except ApiError as refused:
                if refused.problem.cause == "ROUND_NOT_COLLECTING":
                    return
                raise
            round_.trainings[one.client_id] = training.training_id

    async def _record(
        self, opened: RoundResponse, began_s: float, evaluated: EventResponse | None
    ) -> RoundRecord:
        ended = await self.api.send(calls.get_round(opened.round_id))
        task = await self.api.send(calls.get_task(self.task_id))
        slots = ended.schedule.slots if ended.schedule else []
        outcomes = Counter(slot.outcome for slot in slots)
        measured = evaluated.data if evaluated else {}
        return RoundRecord(
            number=ended.number,
            asked=ended.asked,
            selected=ended.selected,
            received=ended.received,
            late=outcomes[SlotOutcome.LATE],
            dropped=outcomes[SlotOutcome.MISSED],
            rejected=outcomes[SlotOutcome.REJECTED],
            elapsed_s=task.elapsed_s * self.time_scale,
            duration_s=None if ended.duration_s is None else ended.duration_s * self.time_scale,
            accuracy=measured.get("accuracy"),
            loss=measured.get("loss"),
            wall_s=time.monotonic() - began_s,
        )
