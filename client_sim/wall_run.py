"""Wall-clock runs: every device is an asyncio task that polls, trains and uploads in real time.

The service schedules; ``round_simulation`` draws the actual speed of each device; each ``Device`` then acts
at its own times and shares the ``Channel`` with the other devices of its round.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from client_sim.connect import allow_open_files
from client_sim.device import Device, MeasuredUpload, RoundRegistry
from client_sim.fleet import Fleet
from client_sim.results import RoundRecord, RunRecord
from client_sim.runs import (
    cancel_on_failure,
    fleet_task,
    start_task,
    task_group,
    wait_for_event,
    wait_until_ready,
)
from client_sim.scenario import Scenario, scaled_behaviour, scaled_task
from client_sim.simulated_run import SimulatedRound, SimulatedRun
from client_sim.wall_round import WallRound
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.common import EventResponse
from services.contract.rounds import RoundResponse
from services.contract.tasks import TaskRequest
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import Clock, Dispatch, TaskState

_OTHER_OPEN_FILES = 200
_BUSY_PAUSE_S = 0.5
"""Before a round is opened again that found too few free resource blocks."""


@dataclass(frozen=True)
class WallRun(SimulatedRun):
    """The result of a run: its record in the scenario's time, its last round in wall-clock time."""

    uploads: Sequence[MeasuredUpload]


async def run_wall(
    api: AsyncApi,
    scenario: Scenario,
    *,
    name: str,
    time_scale: float,
    training: bool,
    on_round: Callable[[RoundRecord], None],
    on_task: Callable[[str], None] | None = None,
) -> WallRun:
    """Enrol a fleet called ``name``, create the task, start the devices and run the rounds."""
    began_s = time.monotonic()
    fleet = Fleet.draw(scenario, name, time_scale)
    task = wall_clock_task(fleet, scenario.task, time_scale, training=training)
    allow_open_files(len(fleet) + _OTHER_OPEN_FILES)
    await fleet.enrol(api)
    task_id = await start_task(api, scenario, task, training=training)
    if on_task is not None:
        on_task(task_id)
    async with cancel_on_failure(api, task_id), api.events(task_id) as events:
        await wait_until_ready(api, task_id, events)
        async with task_group() as group:
            run = _Run(
                api,
                scenario.model_copy(update={"behaviour": scaled_behaviour(scenario.behaviour, time_scale)}),
                fleet,
                task,
                task_id,
                events,
                time_scale,
                training,
                group,
                asyncio.get_running_loop().time(),
            )
            devices = [run.device(number) for number in range(len(fleet))]
            running = [group.create_task(device.run()) for device in devices]
            for device in devices:
                await device.connected.wait()
            outcome = await run.run_rounds(on_round)
            for device_task in running:
                device_task.cancel()
    record = RunRecord(scenario, task_id, run.records, outcome, time.monotonic() - began_s)
    return WallRun(record, fleet, run.last_round, run.uploads)


def wall_clock_task(fleet: Fleet, task: TaskRequest, time_scale: float, *, training: bool) -> TaskRequest:
    """The task with scaled times; the simulator opens its rounds."""
    scaled = fleet_task(fleet, scaled_task(task, time_scale), training=training)
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
    began_s: float
    """By the event loop's clock."""
    records: list[RoundRecord] = field(default_factory=list)
    uploads: list[MeasuredUpload] = field(default_factory=list)
    last_round: SimulatedRound | None = None
    _registry: RoundRegistry = field(default_factory=RoundRegistry)

    def device(self, number: int) -> Device:
        """Create a device."""
        return Device(
            self.api,
            self.fleet,
            number,
            task_id=self.task_id,
            rounds=self._registry,
            on_upload=self.uploads.append,
            run_time_s=self.run_time_s,
        )

    def run_time_s(self) -> float:
        """The time since the run began."""
        return asyncio.get_running_loop().time() - self.began_s

    async def run_rounds(self, on_round: Callable[[RoundRecord], None]) -> str:
        """Open rounds until the scenario's number is reached or the task ends; return the reason."""
        while self.scenario.rounds is None or len(self.records) < self.scenario.rounds:
            await self.fleet.report_if_due(self.api, self.task.report_max_age_s, self.run_time_s())
            began_s = time.monotonic()
            try:
                opened = await self.api.send(endpoints.open_round(self.task_id))
            except ApiError as error:
                if error.problem.cause == "RESOURCE_BLOCKS_BUSY":  # another task holds them
                    await asyncio.sleep(_BUSY_PAUSE_S)
                    continue
                if error.problem.cause == "TASK_OVER":  # the final deadline may pass between rounds
                    return error.problem.detail
                raise
            self.records.append(await self._run_round(opened, began_s))
            on_round(self.records[-1])
            task = await self.api.send(endpoints.get_task(self.task_id))
            if task.state is not TaskState.RUNNING:
                return task.detail or f"The task is {task.state.value}."
        await self.api.send(endpoints.finish_task(self.task_id))
        return f"The run has completed its {len(self.records)} rounds."

    async def _run_round(self, opened: RoundResponse, began_s: float) -> RoundRecord:
        if opened.state is RoundState.REQUESTING:
            await self._wait_for_event(opened.round_id, "round.scheduled", "round.failed")
            opened = await self.api.send(endpoints.get_round(opened.round_id))
        if opened.state is RoundState.FAILED:  # no client was selected; the round still takes its time
            await asyncio.sleep(self.task.round_deadline_s)
            return await self._record(opened, began_s, None)
        round_ = WallRound(opened, self.scenario, self.fleet, self.began_s)
        self.last_round = SimulatedRound(round_.number, round_.schedule, round_.simulated_slots)
        self._registry.add(round_)
        background = [self.group.create_task(self._close_if_no_deadline(round_))]
        if self.training:
            background.append(self.group.create_task(self._request_trainings(round_)))
        ended = await self._wait_for_event(round_.round_id, "round.aggregated", "round.failed")
        for background_task in background:
            background_task.cancel()
        evaluated = None
        if ended.kind == "round.aggregated" and self.task.dataset is not None:
            kinds = ("model.evaluated", "model.not_evaluated")
            while evaluated is None or evaluated.data["version"] != opened.model_version + 1:
                evaluated = await wait_for_event(self.api, self.task_id, self.events, *kinds)
        round_.skip_absent()
        await round_.wait_finished()  # late devices are still uploading
        record = await self._record(opened, began_s, evaluated)
        self._registry.remove(round_)
        round_.end()
        return record

    async def _wait_for_event(self, round_id: str, *kinds: str) -> EventResponse:
        return await wait_for_event(self.api, self.task_id, self.events, *kinds, round_id=round_id)

    async def _close_if_no_deadline(self, round_: WallRound) -> None:
        """Close a round without a deadline after the last upload."""
        if not round_.has_deadline:
            await round_.wait_finished()
            await self.api.send(endpoints.close_round(round_.round_id))

    async def _request_trainings(self, round_: WallRound) -> None:
        """Request training for the devices that will be in time, in upload order."""
        for slot in round_.simulated_slots:
            is_late = slot.late and round_.schedule.dispatch is Dispatch.SCHEDULED
            if is_late or slot.dropped:
                continue
            call = endpoints.request_training(
                round_.round_id, slot.client_id, self.fleet.number(slot.client_id)
            )
            try:
                training = await self.api.send(call)
            except ApiError as error:
                if error.problem.cause == "ROUND_NOT_COLLECTING":
                    return
                raise
            round_.trainings[slot.client_id] = training.training_id

    async def _record(
        self, opened: RoundResponse, began_s: float, evaluated: EventResponse | None
    ) -> RoundRecord:
        ended = await self.api.send(endpoints.get_round(opened.round_id))
        task = await self.api.send(endpoints.get_task(self.task_id))
        schedule = ended.schedule
        slots = schedule.slots if schedule else []
        outcomes = Counter(slot.outcome for slot in slots)
        scores = evaluated.data if evaluated else {}
        return RoundRecord(
            number=ended.number,
            asked=ended.asked,
            selected=ended.selected,
            received=ended.received,
            late=outcomes[SlotOutcome.LATE] + outcomes[SlotOutcome.REFUSED],
            dropped=outcomes[SlotOutcome.MISSED],
            rejected=outcomes[SlotOutcome.REJECTED],
            elapsed_s=task.elapsed_s * self.time_scale,
            duration_s=None if ended.duration_s is None else ended.duration_s * self.time_scale,
            accuracy=scores.get("accuracy"),
            loss=scores.get("loss"),
            wall_s=time.monotonic() - began_s,
            round_deadline_s=None if schedule is None else schedule.round_deadline_s * self.time_scale,
            noise_scale=None if schedule is None else schedule.noise_scale,
        )
