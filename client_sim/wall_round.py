"""A wall-clock round: the shared uplink, paced uploads, and the state that its devices share."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from client_sim.fleet import Fleet
from client_sim.round_simulation import (
    SimulatedSlot,
    round_rng,
    simulate_replacement,
    simulate_round,
    throughput_of,
)
from client_sim.scenario import Scenario
from client_sim.synthetic_updates import SyntheticUpdates
from services.contract.rounds import RoundResponse, RoundSlot
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.tasks import SlotEnforcement

_CHUNKS_PER_S = 50


class Channel:
    """The shared uplink: one upload at a time, in the scheduled order."""

    def __init__(self, client_ids: Iterable[str]) -> None:
        self._order = deque(client_ids)  # with absent devices whose turn has not come
        self._turns = {client_id: _Turn() for client_id in self._order}
        self._advance()

    async def wait_next(self, client_id: str) -> None:
        """Wait until this device is next after the device that holds the channel."""
        await self._turns[client_id].is_next.wait()

    async def wait_free(self, client_id: str) -> None:
        """Wait until all devices before this one have left."""
        await self._turns[client_id].is_free.wait()

    def leave(self, client_id: str) -> None:
        """Release the channel, or skip the device's turn if it has not come."""
        if self._turns.pop(client_id, None) is not None:
            self._advance()

    def rejoin(self, client_id: str) -> None:
        """Come back to the turn that was left, or to the end if it is over."""
        if client_id not in self._order:
            self._order.append(client_id)
        self._turns[client_id] = _Turn()
        self._advance()

    def _advance(self) -> None:
        while self._order and self._order[0] not in self._turns:
            self._order.popleft()
        notified = 0
        for client_id in self._order:
            if turn := self._turns.get(client_id):
                turn.is_next.set()
                if notified == 0:
                    turn.is_free.set()
                notified += 1
            if notified == 2:
                break


@dataclass(frozen=True)
class _Turn:
    is_next: asyncio.Event = field(default_factory=asyncio.Event)
    is_free: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class PacedUpload:
    """Sends an update in chunks at the pace of the uplink, and measures the time it took."""

    sent_after_s: Callable[[float, float], float]
    """By the start of the upload (of the event loop's clock) and a share of it: when this share is sent."""
    time_limit_s: float
    """By the event loop's clock: after it the rest is sent without pauses."""
    on_sent: Callable[[], None]
    """Called after the last byte, and again after a retry."""
    measured_s: float | None = None
    """None: not sent yet, or the time limit ended the pacing."""
    expected_s: float | None = None
    """From the first byte to the last, at the pace of the uplink; None: not begun."""

    async def chunks(self, content: bytes) -> AsyncIterator[bytes]:
        """The content: the first chunk at once, the last when everything is sent."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        duration_s = self.sent_after_s(began_s, 1.0)
        count = max(min(math.ceil(duration_s * _CHUNKS_PER_S) + 1, len(content)), 2)
        size = len(content) / count
        self.measured_s, self.expected_s = None, duration_s
        for number in range(count):
            # Each chunk has its own due time, so delays do not add up.
            due_s = min(began_s + self.sent_after_s(began_s, number / (count - 1)), self.time_limit_s)
            if (left_s := due_s - clock()) > 0:
                await asyncio.sleep(left_s)
            yield content[round(number * size) : round((number + 1) * size)]
        if began_s + duration_s <= self.time_limit_s:
            self.measured_s = clock() - began_s
        self.on_sent()


_TIME_LIMIT_FACTOR = 2
"""Times the deadline: a slow device may draw an upload of any length."""
_PARALLEL_DOWNLOADS = 20
"""Each holds a model in memory."""


class WallRound:
    """A round in progress. Times are in round time, which starts with Client Selection.

    It assumes that the clocks of this machine and of the service agree.
    """

    def __init__(
        self, scheduled: RoundResponse, scenario: Scenario, fleet: Fleet, run_began_s: float
    ) -> None:
        """``run_began_s`` is the begin of the run by the event loop's clock."""
        assert scheduled.schedule is not None, "the round is scheduled"
        assert scheduled.started_at is not None, "the round is scheduled"
        self.schedule = scheduled.schedule
        self.round_id = scheduled.round_id
        self.number = scheduled.number
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock() - (datetime.now(UTC) - scheduled.started_at).total_seconds()
        self._uplinks = fleet.round_uplinks(self.schedule, max(self._began_s - run_began_s, 0.0))
        self._behaviour = scenario.behaviour
        self._rng = round_rng(scenario.seed, scheduled.number)
        self.simulated_slots = simulate_round(self.schedule, self._behaviour, self._rng, self._uplinks)
        self.has_deadline = self.schedule.deadline_s is not None
        self._begins_s = {
            cell.cell_id: self.schedule.selection_s + cell.distribution_s for cell in self.schedule.cells
        }
        self.downloads = asyncio.Semaphore(_PARALLEL_DOWNLOADS)
        self.trainings: dict[str, str] = {}
        """The ids of requested trainings, by client id."""
        self._active = {slot.client_id: slot for slot in self.simulated_slots if not slot.dropped}
        self._slots = {slot.client_id: slot for slot in self.schedule.slots}
        self._channels = {
            cell_id: Channel(
                client_id for client_id in self._active if self._slots[client_id].cell_id == cell_id
            )
            for cell_id in self._begins_s
        }
        self._is_strict = scenario.task.slot_enforcement is SlotEnforcement.STRICT
        self._absent, self._unfinished = set(self._active), set(self._active)
        self._finished, self._ended = asyncio.Event(), asyncio.Event()
        self._synthetic_updates: SyntheticUpdates | None = None
        self._longest_s = _TIME_LIMIT_FACTOR * (self.schedule.deadline_s or math.inf)
        if not self._active:
            self._finished.set()

    def channel(self, client_id: str) -> Channel:
        """The uplink of the cell in which a client has its slot."""
        return self._channels[self._slots[client_id].cell_id]

    def begin_s(self, client_id: str) -> float:
        """When the distribution of the model in the client's cell ends."""
        return self._begins_s[self._slots[client_id].cell_id]

    # Called by its devices.

    def join(self, client_id: str) -> SimulatedSlot | None:
        """What a device does in the round; None if it drops out or the round has ended."""
        if client_id in self._absent:
            self._absent.remove(client_id)
            return self._active[client_id]
        return None

    def add(self, slot: RoundSlot) -> SimulatedSlot | None:
        """What a device does that was selected during the round; None if it drops out or has joined."""
        if slot.client_id in self._slots:
            return None
        self._slots[slot.client_id] = slot
        if self._uplinks is not None:
            self._uplinks.add(slot)
        simulated = simulate_replacement(slot, self._behaviour, self._rng)
        if simulated.dropped:
            return None
        self._unfinished.add(slot.client_id)
        return simulated

    def fresh_throughput_bps(self, simulated: SimulatedSlot) -> float | None:
        """What a device says of its uplink when its update is ready."""
        if not self._behaviour.fresh_throughput:
            return None
        if self._uplinks is not None:
            return self._uplinks.throughput_bps(simulated.client_id, to_ns(self.now_s))
        blocks = self._slots[simulated.client_id].resource_block_count
        return throughput_of(simulated, self.schedule.upload_size_bytes, blocks)

    @property
    def now_s(self) -> float:
        """The current round time."""
        return self._clock() - self._began_s

    async def sleep_until(self, round_time_s: float) -> None:
        """Sleep until a round time, or until the round's time limit."""
        await asyncio.sleep(max(min(round_time_s, self._longest_s) - self.now_s, 0.0))

    @property
    def time_limit_s(self) -> float:
        """The end of the round's time limit, by the event loop's clock."""
        return self._began_s + self._longest_s

    def earliest_upload_s(self, client_id: str) -> float:
        """The round time before which the service rejects the device's upload."""
        return self._slots[client_id].window_start_s if self._is_strict else 0.0

    def pace(self, slot: SimulatedSlot) -> Callable[[float, float], float]:
        """The ``sent_after_s`` of a device's upload."""
        if (uplinks := self._uplinks) is None:
            return lambda _, share: share * slot.upload_s

        def sent_after_s(start_s: float, share: float) -> float:
            start_ns = to_ns(start_s - self._began_s)
            return to_seconds(uplinks.sent_ns(slot.client_id, start_ns, share) - start_ns)

        return sent_after_s

    def timeout_at(self, round_time_s: float) -> asyncio.Timeout:
        """A timeout at a round time."""
        return asyncio.timeout_at(self._began_s + round_time_s)

    def set_model(self, model: bytes) -> None:
        """Keep the downloaded model; it is the same for all devices."""
        if self._synthetic_updates is None:
            self._synthetic_updates = SyntheticUpdates(model, self.schedule)

    def synthetic_update(self, number: int) -> bytes:
        """A synthetic update of the round's model, for a device."""
        assert self._synthetic_updates is not None, "the device has downloaded the model"
        return self._synthetic_updates.of(number)

    def finish(self, client_id: str) -> None:
        """A device has finished."""
        self.channel(client_id).leave(client_id)
        self._unfinished.discard(client_id)
        if not self._unfinished:
            self._finished.set()

    async def wait_ended(self) -> None:
        """Wait until the round has ended."""
        await self._ended.wait()

    # Called by the run.

    async def wait_finished(self) -> None:
        """Wait until every device has finished."""
        await self._finished.wait()

    def skip_absent(self) -> None:
        """Skip the devices that have not joined; the service has ended the round."""
        while self._absent:
            self.finish(self._absent.pop())

    def end(self) -> None:
        """Release the devices to the next round."""
        self._ended.set()
