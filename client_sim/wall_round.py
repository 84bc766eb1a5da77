"""A scheduled round on the wall clock: what its devices share, and what each of them is to do."""

import asyncio
import math
from datetime import UTC, datetime

from client_sim.channel import Channel
from client_sim.round_play import Played, play_round, round_rng
from client_sim.scenario import Scenario
from client_sim.stand_in import StandInUpdates
from services.contract.rounds import RoundResponse
from services.domain.tasks import SlotEnforcement

_DEADLINES = 2
"""So long is a round's patience. A draw may make a device slower than anybody would wait for."""
_DOWNLOADS_AT_ONCE = 20
"""Each holds a model in memory; more at once would not be faster."""


class WallRound:
    """One round. Its moments are in round time, which begins with Client Selection.

    The clock of this machine is taken to agree with that of the service, as it does where both run on one.
    """

    def __init__(self, scheduled: RoundResponse, scenario: Scenario) -> None:
        assert scheduled.schedule is not None, "scheduled"
        assert scheduled.started_at is not None, "scheduled"
        self.schedule = scheduled.schedule
        self.round_id = scheduled.round_id
        self.number = scheduled.number
        self.played = play_round(
            self.schedule, scenario.behaviour, round_rng(scenario.seed, scheduled.number)
        )
        self.has_deadline = self.schedule.policy != "fl"
        self.begin_s = self.schedule.selection_s + self.schedule.distribution_s
        self.downloads = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)
        self.trainings: dict[str, str] = {}
        """Who trains in a device's place, once that is known."""
        self._parts = {one.client_id: one for one in self.played if not one.dropped}
        self.channel = Channel(self._parts)
        self._slots = {slot.client_id: slot for slot in self.schedule.slots}
        self._is_strict = scenario.task.slot_enforcement is SlotEnforcement.STRICT
        self._absent, self._unfinished = set(self._parts), set(self._parts)
        self._settled, self._over = asyncio.Event(), asyncio.Event()
        self._stand_ins: StandInUpdates | None = None
        self._clock = asyncio.get_running_loop().time
        self._began_s = self._clock() - (datetime.now(UTC) - scheduled.started_at).total_seconds()
        self._patience_s = _DEADLINES * self.schedule.round_deadline_s if self.has_deadline else math.inf
        if not self._parts:
            self._settled.set()

    # For its devices.

    def join(self, client_id: str) -> Played | None:
        """What a device is to do; nothing, if it drops out or comes when all is over."""
        if client_id in self._absent:
            self._absent.remove(client_id)
            return self._parts[client_id]
        return None

    @property
    def now_s(self) -> float:
        """The moment it is."""
        return self._clock() - self._began_s

    async def until(self, moment_s: float) -> None:
        """Wait for a moment; no longer than the round's patience."""
        await asyncio.sleep(max(min(moment_s, self._patience_s) - self.now_s, 0.0))

    @property
    def hurry_at_s(self) -> float:
        """When its patience ends, by the clock of the event loop."""
        return self._began_s + self._patience_s

    def opens_s(self, client_id: str) -> float:
        """The moment before which the service takes no update of a device."""
        return self._slots[client_id].window_start_s if self._is_strict else 0.0

    def take_model(self, model: bytes) -> None:
        """The model as a device got it: the same for all, so it is kept once."""
        if self._stand_ins is None:
            self._stand_ins = StandInUpdates(model)

    def stand_in(self, number: int) -> bytes:
        """An update to the round's model that nobody trained, from the device of this number."""
        assert self._stand_ins is not None, "it has the model"
        return self._stand_ins.of(number)

    def finish(self, client_id: str) -> None:
        """A device has done its part."""
        self.channel.leave(client_id)
        self._unfinished.discard(client_id)
        if not self._unfinished:
            self._settled.set()

    async def over(self) -> None:
        """Wait until there is nothing more to do in this round."""
        await self._over.wait()

    # For who opened it.

    async def settled(self) -> None:
        """Wait until every device has done its part."""
        await self._settled.wait()

    def pass_over_absent(self) -> None:
        """Wait for nobody who has not joined: the service has ended the round."""
        while self._absent:
            self.finish(self._absent.pop())

    def end(self) -> None:
        """Let the devices go on to the next round."""
        self._over.set()
