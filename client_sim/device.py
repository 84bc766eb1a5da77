"""One device on the wall clock: it asks what there is to do, and does it when a real one would."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from client_sim import calls
from client_sim.api_client import ApiError, AsyncApi
from client_sim.calls import Body, Call
from client_sim.channel import Pace
from client_sim.fleet import Fleet
from client_sim.round_play import Played
from client_sim.wall_round import WallRound
from services.contract.reports import ReportRequest
from services.contract.rounds import ReportAssignment, UpdateResponse
from services.domain.rounds import SlotOutcome

Answer = TypeVar("Answer")

_POLL_S = 60.0
_PAUSE_S = 0.2
"""Between two polls of a device that has done what it is still asked for."""
_LATE = {"DEADLINE_PASSED", "SLOT_CLOSED"}


@dataclass(frozen=True)
class MeasuredUpload:
    """An upload as it was meant, and as it went. Times are those of the clock on the wall."""

    round_number: int
    client_id: str
    size_bytes: int
    expected_s: float
    """What the scheduled size takes at the throughput drawn."""
    measured_s: float | None
    """From the first to the last byte handed to the network. None: the service refused it before its end, or
    it would have taken longer than the round's patience."""
    outcome: SlotOutcome
    """As the service answered it; an update that was received may be left out of the average later."""
    is_stand_in: bool


class Announced:
    """The rounds that devices may be asked to take part in, by their ids."""

    def __init__(self) -> None:
        self._rounds: defaultdict[str, asyncio.Future[WallRound | None]] = defaultdict(
            asyncio.get_running_loop().create_future
        )

    def announce(self, round_: WallRound) -> None:
        """Let its devices begin."""
        self._rounds[round_.round_id].set_result(round_)

    def withdraw(self, round_: WallRound) -> None:
        """Keep nothing of a round that is over but that it was."""
        over: asyncio.Future[WallRound | None] = asyncio.get_running_loop().create_future()
        over.set_result(None)
        self._rounds[round_.round_id] = over

    async def find(self, round_id: str) -> WallRound | None:
        """The round, as soon as it is announced; None: it is over. A device may hear of it earlier."""
        return await asyncio.shield(self._rounds[round_id])


class Device:
    """One device of a fleet."""

    def __init__(
        self,
        api: AsyncApi,
        fleet: Fleet,
        number: int,
        *,
        task_id: str,
        rounds: Announced,
        on_upload: Callable[[MeasuredUpload], None],
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._number = number
        self._task_id = task_id
        self._rounds = rounds
        self._on_upload = on_upload
        self._client_id = fleet.client_id(number)
        self._key = fleet.key(self._client_id)
        self.is_there = asyncio.Event()
        """Set when the service has answered it: thousands need a while to connect."""

    async def live(self) -> None:
        """Do what there is to do, for ever."""
        await self._send(calls.assignments())
        self.is_there.set()
        while True:
            found = await self._send(calls.assignments(wait_s=_POLL_S))
            ours = [one for one in found.assignments if one.task_id == self._task_id]
            for assignment in ours:
                if isinstance(assignment, ReportAssignment):
                    await self._report()
                else:
                    await self._take_part(assignment.round_id)
            if found.assignments and not ours:
                await asyncio.sleep(_PAUSE_S)  # somebody else's task, of all devices

    async def _send(self, call: Call[Answer]) -> Answer:
        return await self._api.send(call, key=self._key)

    async def _report(self) -> None:
        reports = self._fleet.reports
        report = ReportRequest(
            client_id=self._client_id,
            throughput_bps=float(reports.throughput_bps[self._number]),
            compute_samples_per_s=float(reports.compute_samples_per_s[self._number]),
            data_samples=int(reports.data_samples[self._number]),
        )
        await self._send(calls.post_report(report))

    async def _take_part(self, round_id: str) -> None:
        if (round_ := await self._rounds.find(round_id)) is None:
            await asyncio.sleep(_PAUSE_S)
            return
        if played := round_.join(self._client_id):
            await self._update_and_upload(round_, played)
            round_.finish(self._client_id)
        await round_.over()

    async def _update_and_upload(self, round_: WallRound, played: Played) -> None:
        async with round_.downloads:
            round_.take_model(await self._send(calls.round_model(round_.round_id)))
        done_s = max(round_.begin_s, round_.now_s) + played.update_s
        await round_.channel.is_next(self._client_id)
        # What takes a while is done before the channel is free: a cell's uplink does not wait for it.
        upload = self._upload(round_, played, await self._trained(round_))
        await round_.channel.is_free(self._client_id)
        await round_.until(max(done_s, round_.opens_s(self._client_id)))
        if upload.is_stand_in and (trained := await self._trained(round_)):
            upload = self._upload(round_, played, trained)
        self._on_upload(await self._sent(round_, played, upload))

    async def _trained(self, round_: WallRound) -> bytes | None:
        """The update that a worker trained in the device's place, if it is there."""
        if (training_id := round_.trainings.get(self._client_id)) is None:
            return None
        try:
            return await self._api.send(calls.training_update(training_id))
        except ApiError as refused:
            if refused.problem.cause == "TRAINING_NOT_DONE":
                return None
            raise

    def _upload(self, round_: WallRound, played: Played, trained: bytes | None) -> "_Upload":
        update = trained or round_.stand_in(self._number)
        pace = Pace(played.upload_s, round_.hurry_at_s, lambda: round_.channel.leave(self._client_id))
        samples = self._fleet.data_samples(self._client_id)
        call = calls.upload_update(round_.round_id, self._client_id, Body(update, pace.chunks), samples)
        return _Upload(call, pace, len(update), is_stand_in=trained is None)

    async def _sent(self, round_: WallRound, played: Played, upload: "_Upload") -> MeasuredUpload:
        outcome = SlotOutcome.RECEIVED
        try:
            await self._send(upload.call)
        except ApiError as refused:
            outcome = outcome_of(refused)
        return MeasuredUpload(
            round_number=round_.number,
            client_id=self._client_id,
            size_bytes=upload.size_bytes,
            expected_s=played.upload_s,
            measured_s=upload.pace.measured_s,
            outcome=outcome,
            is_stand_in=upload.is_stand_in,
        )


@dataclass(frozen=True)
class _Upload:
    """An update that is ready to be sent."""

    call: Call[UpdateResponse]
    pace: Pace
    size_bytes: int
    is_stand_in: bool


def outcome_of(refused: ApiError) -> SlotOutcome:
    """What it means for the slot that an update was refused."""
    if refused.problem.cause in _LATE:
        return SlotOutcome.LATE
    if refused.status == 409:
        return SlotOutcome.MISSED
    if refused.status in (413, 422):
        return SlotOutcome.REJECTED
    raise refused
