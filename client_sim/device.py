"""A device of a wall-clock run: polls for assignments, reports, trains and uploads."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from client_sim.fleet import Fleet
from client_sim.round_simulation import SimulatedSlot
from client_sim.wall_round import PacedUpload, WallRound
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from fedcs_client.endpoints import Body, Call
from services.contract.assignments import ReportAssignment, TrainAssignment, UpdateResponse
from services.domain.channel import ChannelState
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import SlotOutcome
from services.domain.tasks import Dispatch

Answer = TypeVar("Answer")

_POLL_S = 60.0
_LATE = {"DEADLINE_PASSED", "SLOT_CLOSED"}


@dataclass(frozen=True)
class MeasuredUpload:
    """The expected and the measured time of an upload, in wall-clock seconds."""

    round_number: int
    client_id: str
    size_bytes: int
    expected_s: float
    """The scheduled size ÷ the throughput, which is drawn or that of the uplink over time."""
    measured_s: float | None
    """From the first to the last byte. None: the service rejected it before its end, or it would have
    exceeded the round's time limit."""
    outcome: SlotOutcome
    """From the response; aggregation may still reject a received update."""
    is_synthetic: bool


class RoundRegistry:
    """The rounds in progress, by id."""

    def __init__(self) -> None:
        self._rounds: defaultdict[str, asyncio.Future[WallRound | None]] = defaultdict(
            asyncio.get_running_loop().create_future
        )

    def add(self, round_: WallRound) -> None:
        """Add a round, so that its devices start."""
        self._rounds[round_.round_id].set_result(round_)

    def remove(self, round_: WallRound) -> None:
        """Remove a round, and remember that it has ended."""
        ended: asyncio.Future[WallRound | None] = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        self._rounds[round_.round_id] = ended

    async def wait_for(self, round_id: str) -> WallRound | None:
        """Wait for the round to be added; None: it has ended."""
        return await asyncio.shield(self._rounds[round_id])


class Device:
    """A device of the fleet."""

    def __init__(
        self,
        api: AsyncApi,
        fleet: Fleet,
        number: int,
        *,
        task_id: str,
        rounds: RoundRegistry,
        on_upload: Callable[[MeasuredUpload], None],
        run_time_s: Callable[[], float],
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._number = number
        self._task_id = task_id
        self._rounds = rounds
        self._on_upload = on_upload
        self._run_time_s = run_time_s
        self._client_id = fleet.client_id(number)
        self._key = fleet.key(self._client_id)
        self.connected = asyncio.Event()
        """Set after the first response: it takes a while to connect thousands of devices."""

    async def run(self) -> None:
        """Poll for assignments and carry them out until cancelled."""
        known = None
        while True:
            found = await self._send(endpoints.assignments(_POLL_S, known))
            self.connected.set()
            if found is known:
                continue
            for assignment in found.assignments:
                if assignment.task_id != self._task_id:
                    continue
                if isinstance(assignment, ReportAssignment):
                    await self._report()
                else:
                    await self._take_part(assignment.round_id)
            known = found

    async def _send(self, call: Call[Answer]) -> Answer:
        return await self._api.send(call, key=self._key)

    async def _report(self) -> None:
        await self._send(endpoints.post_report(self._fleet.report_of(self._number, self._run_time_s())))

    async def _take_part(self, round_id: str) -> None:
        if (round_ := await self._rounds.wait_for(round_id)) is None:
            return
        slot = round_.join(self._client_id) or await self._replace(round_)
        if slot is not None:
            await self._update_and_upload(round_, slot)
            round_.finish(self._client_id)
        await round_.wait_ended()

    async def _update_and_upload(self, round_: WallRound, slot: SimulatedSlot) -> None:
        async with round_.downloads:
            round_.set_model(await self._send(endpoints.round_model(round_.round_id)))
        done_s = max(round_.begin_s(self._client_id), round_.now_s) + slot.update_s
        is_on_ready = round_.schedule.dispatch is Dispatch.ON_READY
        upload = self._upload_when_granted if is_on_ready else self._upload_when_free
        if (absence := slot.absence) is None:
            await upload(round_, slot, done_s)
            return
        leaves = round_.timeout_at(to_seconds(absence.left_ns))
        try:
            async with leaves:
                await upload(round_, slot, done_s)
        except TimeoutError:
            if not leaves.expired():
                raise
            round_.channel(self._client_id).leave(self._client_id)
            await round_.sleep_until(to_seconds(absence.back_ns))
            round_.channel(self._client_id).rejoin(self._client_id)
            await upload(round_, slot, done_s)

    async def _upload_when_free(self, round_: WallRound, slot: SimulatedSlot, done_s: float) -> None:
        await round_.channel(self._client_id).wait_next(self._client_id)
        # Prepare the upload before the channel is free, so that the channel is not idle.
        upload = self._upload(round_, slot, await self._trained(round_))
        await round_.channel(self._client_id).wait_free(self._client_id)
        await round_.sleep_until(max(done_s, round_.earliest_upload_s(self._client_id)))
        if upload.is_synthetic and (trained := await self._trained(round_)):
            upload = self._upload(round_, slot, trained)
        self._on_upload(await self._send_upload(round_, slot, upload))

    async def _replace(self, round_: WallRound) -> SimulatedSlot | None:
        """What this device does if it was selected in the place of another one during the round."""
        if round_.schedule.dispatch is Dispatch.SCHEDULED:
            return None
        (slot,) = (await self._send(endpoints.get_schedule(round_.round_id))).slots
        return round_.add(slot)

    async def _upload_when_granted(self, round_: WallRound, slot: SimulatedSlot, done_s: float) -> None:
        """Upload each time that the channel is granted, until the service takes the update or refuses it."""
        await round_.sleep_until(done_s)
        upload = self._upload(round_, slot, await self._trained(round_))
        while await self._is_granted(round_, slot):
            measured = await self._send_upload(round_, slot, upload)
            self._on_upload(measured)
            if measured.outcome is not SlotOutcome.MISSED:
                return

    async def _is_granted(self, round_: WallRound, slot: SimulatedSlot) -> bool:
        """Say that the update is done, and wait for the channel; false: there is no more grant."""
        try:
            answer = await self._send(
                endpoints.mark_ready(round_.round_id, throughput_bps=round_.fresh_throughput_bps(slot))
            )
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:  # the round is over
                return False
            raise
        if answer.state is not ChannelState.WAITING:
            return answer.state is ChannelState.GRANTED
        known = None
        while True:
            known = await self._send(endpoints.assignments(_POLL_S if known else 0.0, known))
            states = [
                assignment.channel
                for assignment in known.assignments
                if isinstance(assignment, TrainAssignment) and assignment.round_id == round_.round_id
            ]
            if states != [ChannelState.WAITING]:
                return states == [ChannelState.GRANTED]

    async def _trained(self, round_: WallRound) -> bytes | None:
        """The update that a worker trained for this device, if it is done."""
        if (training_id := round_.trainings.get(self._client_id)) is None:
            return None
        try:
            return await self._api.send(endpoints.training_update(training_id))
        except ApiError as error:
            if error.problem.cause == "TRAINING_NOT_DONE":
                return None
            raise

    def _upload(self, round_: WallRound, slot: SimulatedSlot, trained: bytes | None) -> "_Upload":
        update = trained or round_.synthetic_update(self._number)
        pace = PacedUpload(
            round_.pace(slot),
            round_.time_limit_s,
            lambda: round_.channel(self._client_id).leave(self._client_id),
        )
        samples = self._fleet.data_samples(self._client_id)
        body = Body(update, pace.chunks)
        call = endpoints.upload_update(
            round_.round_id,
            self._client_id,
            body,
            samples,
            encoding=round_.schedule.update_encoding,
            update_s=slot.update_s,
        )
        return _Upload(call, pace, len(update), is_synthetic=trained is None)

    async def _send_upload(self, round_: WallRound, slot: SimulatedSlot, upload: "_Upload") -> MeasuredUpload:
        outcome = SlotOutcome.RECEIVED
        try:
            await self._send(upload.call)
        except ApiError as error:
            outcome = outcome_of(error)
        return MeasuredUpload(
            round_number=round_.number,
            client_id=self._client_id,
            size_bytes=upload.size_bytes,
            expected_s=slot.upload_s if upload.pace.expected_s is None else upload.pace.expected_s,
            measured_s=upload.pace.measured_s,
            outcome=outcome,
            is_synthetic=upload.is_synthetic,
        )


@dataclass(frozen=True)
class _Upload:
    """A prepared upload."""

    call: Call[UpdateResponse]
    pace: PacedUpload
    size_bytes: int
    is_synthetic: bool


def outcome_of(error: ApiError) -> SlotOutcome:
    """The outcome of a slot whose update was rejected."""
    if error.problem.cause in _LATE:
        return SlotOutcome.LATE
    if error.status == 409:
        return SlotOutcome.MISSED
    if error.status in (413, 422):
        return SlotOutcome.REJECTED
    raise error
