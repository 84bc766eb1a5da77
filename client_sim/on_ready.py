"""Simulated-clock rounds with ``dispatch: on_ready``: ready calls and uploads, in order of round time."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np

from client_sim.round_simulation import SimulatedSlot, simulate_replacement, throughput_of
from client_sim.scenario import Behaviour
from client_sim.uplinks import RoundUplinks
from services.contract.assignments import ChannelResponse, ReadyResponse
from services.contract.rounds import RoundSlot, ScheduleResponse
from services.domain.channel import ChannelState
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import SlotOutcome


class ChannelCalls(Protocol):
    """What the devices of a round ask of the service."""

    async def ready(
        self, client_id: str, elapsed_s: float, throughput_bps: float | None
    ) -> ReadyResponse | None:
        """The client's update is done; None: the service refuses the call."""

    async def upload(self, slot: SimulatedSlot) -> ChannelResponse | None:
        """The client has uploaded; None: it had nothing to upload."""

    async def schedule(self) -> ScheduleResponse:
        """The schedule with the clients that were selected since the round opened."""


class _Action(IntEnum):
    UPLOADED = 0
    LAPSED = 1
    READY = 2


@dataclass
class _Device:
    slot: RoundSlot
    simulated: SimulatedSlot
    granted_s: float | None = None
    is_waiting: bool = False
    """Whether it has called ready and may be granted the channel."""

    def is_away(self, from_ns: int, until_ns: int) -> bool:
        """Whether it is away at some time between these."""
        absence = self.simulated.absence
        return absence is not None and absence.left_ns < until_ns and absence.back_ns > from_ns


class OnReadyRound:
    """Runs the devices of a round; each call waits for the answer to the call before."""

    def __init__(
        self,
        schedule: ScheduleResponse,
        simulated: Sequence[SimulatedSlot],
        behaviour: Behaviour,
        rng: np.random.Generator,
        calls: ChannelCalls,
        *,
        uplinks: RoundUplinks | None = None,
    ) -> None:
        self._schedule = schedule
        self._behaviour = behaviour
        self._rng = rng
        self._calls = calls
        self._uplinks = uplinks
        self._events: list[tuple[int, _Action, str]] = []
        self._devices: dict[str, _Device] = {}
        self.dropped = 0
        """How many devices take no part."""
        self._has_deadline = schedule.deadline_s is not None
        self._deadline_ns = to_ns(schedule.deadline_s or 0.0) - to_ns(schedule.aggregation_s)
        begins_ns = {
            cell.cell_id: to_ns(schedule.selection_s) + to_ns(cell.distribution_s) for cell in schedule.cells
        }
        for slot, device in zip(schedule.slots, simulated, strict=True):
            self._add(slot, device, begins_ns[slot.cell_id])

    async def run(self) -> list[SimulatedSlot]:
        """Run the round until its deadline; returns what each device did."""
        while self._events:
            at_ns, action, client_id = heapq.heappop(self._events)
            device = self._devices[client_id]
            if self._has_deadline and at_ns >= self._deadline_ns:
                if action is _Action.UPLOADED:
                    device.simulated = replace(device.simulated, late=True)
                    await self._calls.upload(device.simulated)
                continue
            if action is _Action.UPLOADED:
                answer = await self._calls.upload(device.simulated)
            elif action is _Action.LAPSED and device.is_away(at_ns, at_ns + 1):
                answer = await self._lapse_of_absent(device, at_ns)
            else:
                says_throughput = self._behaviour.fresh_throughput or action is _Action.LAPSED
                answer = await self._ready(device, at_ns, says_throughput=says_throughput)
            if answer is not None:
                await self._take(answer, at_ns)
        return [device.simulated for device in self._devices.values()]

    def _add(self, slot: RoundSlot, simulated: SimulatedSlot, begin_ns: int) -> None:
        """A device begins its update; uploads of an interrupted run are done already."""
        planned = replace(simulated, upload_start_s=None, upload_end_s=None, late=False)
        self._devices[slot.client_id] = _Device(slot, planned)
        self.dropped += simulated.dropped
        if not simulated.dropped and slot.outcome is SlotOutcome.PENDING:
            ready_ns = begin_ns + to_ns(simulated.update_s)
            heapq.heappush(self._events, (ready_ns, _Action.READY, slot.client_id))

    async def _ready(
        self, device: _Device, at_ns: int, *, says_throughput: bool = False
    ) -> ReadyResponse | None:
        """Call ready for a device."""
        throughput_bps = None
        if says_throughput and self._uplinks is not None:
            throughput_bps = self._uplinks.throughput_bps(device.slot.client_id, at_ns)
        elif says_throughput:
            throughput_bps = throughput_of(
                device.simulated, self._schedule.upload_size_bytes, device.slot.resource_block_count
            )
        answer = await self._calls.ready(device.slot.client_id, to_seconds(at_ns), throughput_bps)
        device.is_waiting = answer is not None and answer.state is ChannelState.WAITING
        return answer

    async def _lapse_of_absent(self, absent: _Device, at_ns: int) -> ChannelResponse | None:
        """The grant of a device lapses that is away; it calls ready when it is back.

        On the simulated clock the service decides when it is called, so a device that waits calls it.
        """
        assert absent.simulated.absence is not None, "it is away"
        event = (absent.simulated.absence.back_ns, _Action.READY, absent.slot.client_id)
        heapq.heappush(self._events, event)
        for device in self._devices.values():
            if device.is_waiting and device.slot.cell_id == absent.slot.cell_id:
                answer = await self._ready(device, at_ns)
                if answer is not None and answer.state is not ChannelState.REFUSED:
                    return answer
        return None

    async def _take(self, answer: ChannelResponse, at_ns: int) -> None:
        """Begin the uploads that were granted, and the updates of clients that were selected just now."""
        for grant in answer.grants:
            device = self._devices[grant.client_id]
            if device.granted_s == grant.granted_s:
                continue
            device.granted_s, device.is_waiting = grant.granted_s, False
            start_ns = to_ns(grant.granted_s)
            if self._uplinks is None:
                end_ns = start_ns + to_ns(device.simulated.upload_s)
            else:
                end_ns = self._uplinks.sent_ns(grant.client_id, start_ns)
            device.simulated = replace(
                device.simulated,
                upload_s=to_seconds(end_ns - start_ns),
                upload_start_s=grant.granted_s,
                upload_end_s=to_seconds(end_ns),
            )
            lapses_ns = to_ns(grant.expires_s)
            is_sent = end_ns < lapses_ns and not device.is_away(start_ns, end_ns)
            event = (end_ns, _Action.UPLOADED) if is_sent else (lapses_ns, _Action.LAPSED)
            heapq.heappush(self._events, (*event, grant.client_id))
        added = [client_id for client_id in answer.replacements if client_id not in self._devices]
        if added:
            slots = {slot.client_id: slot for slot in (await self._calls.schedule()).slots}
            share = self._schedule.download_size_bytes / self._schedule.upload_size_bytes
            for client_id in added:
                slot = slots[client_id]
                if self._uplinks is not None:
                    self._uplinks.add(slot)
                simulated = simulate_replacement(slot, self._behaviour, self._rng)
                self._add(slot, simulated, at_ns + to_ns(slot.upload_s * share))
