"""Simulated-clock runs: rounds run one after another, as fast as the machine allows."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from client_sim.fleet import Fleet
from client_sim.on_ready import OnReadyRound
from client_sim.results import RoundRecord, RunRecord
from client_sim.round_simulation import SimulatedSlot, round_rng, simulate_round
from client_sim.runs import (
    cancel_on_failure,
    fleet_task,
    start_task,
    task_group,
    wait_for_event,
    wait_until_ready,
)
from client_sim.scenario import Scenario
from client_sim.synthetic_updates import SyntheticUpdates
from client_sim.uplinks import RoundUplinks
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.assignments import ChannelResponse, ReadyResponse, TrainingResponse, UpdateResponse
from services.contract.common import EventResponse
from services.contract.rounds import RoundResponse, ScheduleResponse
from services.contract.tasks import TaskResponse
from services.domain.jobs import TrainingState
from services.domain.rounds import OPEN_STATES, UPLOAD_STATES, RoundState, SlotOutcome
from services.domain.tasks import Dispatch, TaskState

_MAX_UPLOADS, _MIN_UPLOADS = 24, 4
"""In parallel: the service commits concurrent uploads together."""
_PARALLEL_BYTES = 64 * 1024 * 1024
"""Each upload holds an update in memory."""


@dataclass(frozen=True)
class SimulatedRound:
    """A round: its schedule, and what the devices did."""

    number: int
    schedule: ScheduleResponse
    simulated_slots: Sequence[SimulatedSlot]


@asynccontextmanager
async def task_rounds(
    api: AsyncApi, scenario: Scenario, fleet: Fleet, task_id: str, *, training: bool
) -> AsyncIterator["Rounds"]:
    """Wait until a task is ready, and yield its rounds."""
    async with api.events(task_id) as events:
        await wait_until_ready(api, task_id, events)
        yield Rounds(api, scenario, fleet, task_id, events, training)


@dataclass
class Rounds:
    """Runs the rounds of a task."""

    api: AsyncApi
    scenario: Scenario
    fleet: Fleet
    task_id: str
    events: AsyncIterator[EventResponse]
    training: bool
    outcome: str | None = None
    """Why the task ended; None while it is running."""
    last_round: SimulatedRound | None = None
    elapsed_s: float = 0.0
    """The task's elapsed time before the current round."""

    async def run(self, after: int = 0) -> AsyncIterator[RoundRecord]:
        """Run the rounds after number ``after`` until the task ends.

        If an interrupted run has opened the next round, this run completes it.
        """
        unfinished = await self._unfinished_round(after)
        while self.outcome is None:
            began_s = time.monotonic()
            if unfinished is None:
                await self.fleet.report_if_due(self.api, self.scenario.task.report_max_age_s, self.elapsed_s)
                opened = await self.api.send(endpoints.open_round(self.task_id))
            else:
                opened, unfinished = unfinished, None
            lost = await self._run_round(opened)
            yield await self._record(opened, lost, began_s)

    async def _unfinished_round(self, number: int) -> RoundResponse | None:
        """The round after this number, if it has been opened; otherwise check whether the task has ended."""
        newest = await self.api.send(endpoints.newest_rounds(self.task_id, 1))
        if newest and newest[0].number > number:
            ended = (await self.api.send(endpoints.task_metrics(self.task_id))).rounds
            before = [round_.elapsed_s for round_ in ended if round_.number <= number]
            self.elapsed_s = (before[-1] if before else None) or 0.0
            return await self.api.send(endpoints.get_round(newest[0].round_id))
        self._check_task(await self.api.send(endpoints.get_task(self.task_id)))
        return None

    def _check_task(self, task: TaskResponse) -> None:
        self.elapsed_s = task.elapsed_s
        if task.state not in (TaskState.READY, TaskState.RUNNING):
            self.outcome = task.detail or f"The task is {task.state.value}."

    async def _run_round(self, opened: RoundResponse) -> "_LostUploads":
        if opened.schedule is None:
            return _LostUploads()  # the round failed: simulated rounds are scheduled when they open
        uplinks = self.fleet.round_uplinks(opened.schedule, self.elapsed_s)
        slots = simulate_round(
            opened.schedule,
            self.scenario.behaviour,
            round_rng(self.scenario.seed, opened.number),
            uplinks,
        )
        if opened.schedule.dispatch is Dispatch.ON_READY:
            return await self._run_on_ready(opened, opened.schedule, slots, uplinks)
        self.last_round = SimulatedRound(opened.number, opened.schedule, slots)
        dropped = sum(slot.dropped for slot in slots)
        if opened.state in UPLOAD_STATES:
            failed = await self._send_updates(opened, self.last_round)
            if dropped or failed:
                await self.api.send(endpoints.close_round(opened.round_id))
            dropped += failed
        if opened.state in OPEN_STATES:
            await self.next_event("round.aggregated", "round.failed", round_id=opened.round_id)
        return _LostUploads(late=sum(slot.late for slot in slots), dropped=dropped)

    async def _run_on_ready(
        self,
        opened: RoundResponse,
        schedule: ScheduleResponse,
        slots: Sequence[SimulatedSlot],
        uplinks: RoundUplinks | None,
    ) -> "_LostUploads":
        rng = np.random.default_rng([self.scenario.seed, opened.number, 1])
        calls = _OnReadyCalls(self, opened, schedule)
        round_ = OnReadyRound(schedule, slots, self.scenario.behaviour, rng, calls, uplinks=uplinks)
        if opened.state in UPLOAD_STATES:
            await calls.request_trainings(slot.client_id for slot in slots if not slot.dropped)
            slots = await round_.run()
            await self.api.send(endpoints.close_round(opened.round_id))
        ended = await self.api.send(endpoints.get_round(opened.round_id))
        if ended.state in OPEN_STATES:
            await self.next_event("round.aggregated", "round.failed", round_id=opened.round_id)
        shown = await calls.schedule()
        by_id = {slot.client_id: slot for slot in slots}
        self.last_round = SimulatedRound(
            opened.number, shown, [by_id[slot.client_id] for slot in shown.slots if slot.client_id in by_id]
        )
        received = sum(slot.outcome in (SlotOutcome.RECEIVED, SlotOutcome.REJECTED) for slot in shown.slots)
        return _LostUploads(late=len(shown.slots) - received - round_.dropped, dropped=round_.dropped)

    async def _send_updates(self, opened: RoundResponse, round_: SimulatedRound) -> int:
        """Upload the pending updates; return the number of failed trainings."""
        pending = {slot.client_id for slot in round_.schedule.slots if slot.outcome is SlotOutcome.PENDING}
        devices = {
            slot.client_id: slot
            for slot in round_.simulated_slots
            if slot.client_id in pending and not slot.dropped
        }
        for slot in [slot for slot in devices.values() if slot.late]:
            await self.upload(opened, devices.pop(slot.client_id), b"")  # rejected by its time
        if self.training:
            return await self._train(opened, devices)
        await self._upload_synthetic(opened, devices)
        return 0

    async def _train(self, opened: RoundResponse, devices: dict[str, SimulatedSlot]) -> int:
        """Request trainings and upload each update when it is done; return the number of failures."""
        upload_limit = asyncio.Semaphore(_MIN_UPLOADS)
        trainings = [
            await self.api.send(
                endpoints.request_training(opened.round_id, client_id, self.fleet.number(client_id))
            )
            for client_id in devices
        ]
        # Trainings requested by an interrupted run may be done.
        done = [training for training in trainings if training.state is TrainingState.DONE]
        waiting = {
            training.training_id: training
            for training in trainings
            if training.state is TrainingState.WAITING
        }
        failed = len(trainings) - len(done) - len(waiting)

        async def fetch_and_upload(training: TrainingResponse) -> None:
            async with upload_limit:
                update = await self.api.send(endpoints.training_update(training.training_id))
                await self.upload(opened, devices[training.client_id], update)

        async with task_group() as uploads:
            for training in done:
                uploads.create_task(fetch_and_upload(training))
            while waiting:
                event = await self.next_event("training.done", "training.failed")
                ended = waiting.pop(event.data["training_id"], None)
                if ended is not None and event.kind == "training.done":
                    uploads.create_task(fetch_and_upload(ended))
                elif ended is not None:
                    failed += 1
        return failed

    async def _upload_synthetic(self, opened: RoundResponse, devices: dict[str, SimulatedSlot]) -> None:
        """Upload synthetic updates."""
        assert opened.schedule is not None, "it has slots"
        model = await self.api.send(endpoints.round_model(opened.round_id))
        updates = SyntheticUpdates(model, opened.schedule)
        waiting = iter(devices.values())

        async def upload_next() -> None:
            for device in waiting:
                update = updates.of(self.fleet.number(device.client_id))
                await self.upload(opened, device, update)

        async with task_group() as uploads:
            for _ in range(_uploads_at_once(len(model))):
                uploads.create_task(upload_next())

    async def upload(
        self, opened: RoundResponse, device: SimulatedSlot, update: bytes
    ) -> UpdateResponse | None:
        """Upload for a device; None if it is late."""
        assert opened.schedule is not None, "it has slots"
        call = endpoints.upload_update(
            opened.round_id,
            device.client_id,
            update,
            self.fleet.data_samples(device.client_id),
            encoding=opened.schedule.update_encoding,
            elapsed_s=device.upload_end_s,
            update_s=device.update_s,
            upload_s=device.upload_s,
        )
        try:
            return await self.api.send(call, key=self.fleet.key(device.client_id))
        except ApiError as error:
            if not (device.late and error.problem.cause == "DEADLINE_PASSED"):
                raise
            return None

    async def next_event(self, *kinds: str, round_id: str | None = None) -> EventResponse:
        """Wait for the next event of these kinds of the task."""
        return await wait_for_event(self.api, self.task_id, self.events, *kinds, round_id=round_id)

    async def _record(self, opened: RoundResponse, lost: "_LostUploads", began_s: float) -> RoundRecord:
        """Record the result of a round, and check whether the task has ended."""
        ended = (await self.api.send(endpoints.newest_rounds(self.task_id, 1)))[0]
        accuracy = loss = None
        if ended.state is RoundState.AGGREGATED and self.training:
            accuracy, loss = await self._evaluation(opened)
        task = await self.api.send(endpoints.get_task(self.task_id))
        self._check_task(task)
        schedule = opened.schedule
        return RoundRecord(
            number=opened.number,
            asked=opened.asked,
            selected=ended.selected,
            received=ended.received,
            late=lost.late,
            dropped=lost.dropped,
            rejected=ended.selected - ended.received - lost.late - lost.dropped,
            elapsed_s=task.elapsed_s,
            duration_s=ended.duration_s,
            accuracy=accuracy,
            loss=loss,
            wall_s=time.monotonic() - began_s,
            round_deadline_s=None if schedule is None else schedule.round_deadline_s,
            noise_scale=None if schedule is None else schedule.noise_scale,
        )

    async def _evaluation(self, opened: RoundResponse) -> tuple[float | None, float | None]:
        """Accuracy and loss of the round's model; None if its evaluation failed."""
        if opened.state is RoundState.AGGREGATED:  # by an interrupted run
            known = (await self.api.send(endpoints.task_metrics(self.task_id))).rounds[-1]
            if known.accuracy is not None or known.evaluation_error is not None:
                return known.accuracy, known.loss
        while True:
            event = await self.next_event("model.evaluated", "model.not_evaluated")
            if event.data["version"] == opened.model_version + 1:
                return event.data.get("accuracy"), event.data.get("loss")


def _uploads_at_once(model_bytes: int) -> int:
    return min(max(_PARALLEL_BYTES // model_bytes, _MIN_UPLOADS), _MAX_UPLOADS)


@dataclass(frozen=True)
class _LostUploads:
    """Numbers of uploads that were late or missing."""

    late: int = 0
    dropped: int = 0


class _OnReadyCalls:
    """The calls of the devices of a round with ``dispatch: on_ready``."""

    def __init__(self, run: Rounds, opened: RoundResponse, schedule: ScheduleResponse) -> None:
        self._run = run
        self._opened = opened
        self._schedule = schedule
        self._updates: SyntheticUpdates | None = None
        self._trainings: dict[str, str] = {}
        self._ended: dict[str, bool] = {}
        """Trainings that are over: whether there is an update."""

    async def request_trainings(self, client_ids: Iterable[str]) -> None:
        """Have workers train for these devices."""
        if not self._run.training:
            return
        for client_id in client_ids:
            number = self._run.fleet.number(client_id)
            training = await self._run.api.send(
                endpoints.request_training(self._opened.round_id, client_id, number)
            )
            self._trainings[client_id] = training.training_id
            if training.state is not TrainingState.WAITING:
                self._ended[training.training_id] = training.state is TrainingState.DONE

    async def ready(self, client_id: str, elapsed_s: float, throughput_bps: float | None) -> ReadyResponse:
        """Say that an update is done."""
        call = endpoints.mark_ready(self._opened.round_id, throughput_bps=throughput_bps, elapsed_s=elapsed_s)
        return await self._run.api.send(call, key=self._run.fleet.key(client_id))

    async def upload(self, slot: SimulatedSlot) -> ChannelResponse | None:
        """Upload; a device whose training failed declines."""
        if slot.late:
            return await self._run.upload(self._opened, slot, b"")
        update = await self._update_of(slot.client_id)
        if update is None:
            call = endpoints.decline_round(self._opened.round_id, "The training failed.")
            await self._run.api.send(call, key=self._run.fleet.key(slot.client_id))
            return None
        return await self._run.upload(self._opened, slot, update)

    async def schedule(self) -> ScheduleResponse:
        """The schedule as it is now; devices that were added begin their trainings."""
        schedule = await self._run.api.send(endpoints.get_schedule(self._opened.round_id))
        new = [slot.client_id for slot in schedule.slots if slot.outcome is SlotOutcome.PENDING]
        await self.request_trainings(client_id for client_id in new if client_id not in self._trainings)
        return schedule

    async def _update_of(self, client_id: str) -> bytes | None:
        training_id = self._trainings.get(client_id)
        if training_id is None:
            if self._updates is None:
                model = await self._run.api.send(endpoints.round_model(self._opened.round_id))
                self._updates = SyntheticUpdates(model, self._schedule)
            return self._updates.of(self._run.fleet.number(client_id))
        while training_id not in self._ended:
            event = await self._run.next_event("training.done", "training.failed")
            self._ended[event.data["training_id"]] = event.kind == "training.done"
        if not self._ended[training_id]:
            return None
        return await self._run.api.send(endpoints.training_update(training_id))


@dataclass(frozen=True)
class SimulatedRun:
    """The result of a run; the last round is kept for the plots."""

    record: RunRecord
    fleet: Fleet
    last_round: SimulatedRound | None


async def run_simulated(
    api: AsyncApi,
    scenario: Scenario,
    *,
    name: str,
    training: bool,
    on_round: Callable[[RoundRecord], None],
    on_task: Callable[[str], None] | None = None,
) -> SimulatedRun:
    """Enrol a fleet called ``name``, create the task and run its rounds; ``on_task`` is given its id."""
    began_s = time.monotonic()
    fleet = Fleet.draw(scenario, name)
    task = fleet_task(fleet, scenario.task, training=training)
    await fleet.enrol(api)
    task_id = await start_task(api, scenario, task, training=training)
    if on_task is not None:
        on_task(task_id)
    records = []
    async with (
        cancel_on_failure(api, task_id),
        task_rounds(api, scenario, fleet, task_id, training=training) as rounds,
    ):
        async for record in rounds.run():
            records.append(record)
            on_round(record)
            if len(records) == scenario.rounds:
                break
        if rounds.outcome is None:
            await api.send(endpoints.finish_task(task_id))
    outcome = rounds.outcome or f"The run has completed its {len(records)} rounds."
    run = RunRecord(scenario, task_id, records, outcome, time.monotonic() - began_s)
    return SimulatedRun(run, fleet, rounds.last_round)
