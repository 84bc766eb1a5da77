"""The rounds of a load test: one after another, each as long as its clients and the worker take."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.load_latency import Measured, Operation, kind_of
from client_sim.stand_in import StandInUpdates
from services.contract.events import EventResponse
from services.contract.plans import Slot
from services.domain.rounds import RoundState
from services.errors import FedCSError

_PATIENCE_S = 60.0
_AFTER_BREAK_S = 1.0
_LOOK_AGAIN_S = 0.05
_UPLOADS_SHARE = 0.8
"""Of the time from round to round: in it uploads begin."""
_ENDINGS = {RoundState.AGGREGATED, RoundState.FAILED, RoundState.CANCELLED}


class LoadRound:
    """A round that is under way."""

    def __init__(self, round_id: str) -> None:
        self.round_id = round_id
        self.opened_s = time.monotonic()
        self.updates: StandInUpdates | None = None
        """To the round's model, once somebody has it."""
        self.last_upload_s = self.opened_s
        self.outcome: str | None = None
        self._selected: int | None = None
        self._ended: dict[str, bool] = {}
        self.all_ended = asyncio.Event()
        self.over = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether everybody has uploaded."""
        return len(self._ended) == self._selected and all(self._ended.values())

    def note_opened(self, selected: int) -> None:
        """It has so many slots."""
        self._selected = selected
        self._check_end()

    def note_end(self, client_id: str, *, is_uploaded: bool) -> None:
        """A client has done what it could."""
        self._ended[client_id] = is_uploaded
        self.last_upload_s = time.monotonic()
        self._check_end()

    def note_over(self, outcome: str) -> None:
        """It has ended, or nothing more is heard of it: nobody needs to wait."""
        self.outcome = outcome
        self.all_ended.set()
        self.over.set()

    def _check_end(self) -> None:
        if len(self._ended) == self._selected:
            self.all_ended.set()


TakePart = Callable[[LoadRound, Slot], Coroutine[Any, Any, bool]]


class LoadRounds:
    """A task's rounds; a new one every so often, or when the last is over if that is later."""

    def __init__(self, api: AsyncApi, measured: Measured, task_id: str, round_every_s: float) -> None:
        self._api = api
        self._measured = measured
        self._task_id = task_id
        self._round_every_s = round_every_s
        self._under_way: dict[str, LoadRound] = {}
        self._left_open: str | None = None
        self._hears = False
        self.aggregated = 0
        self.uploads_within_s = _UPLOADS_SHARE * round_every_s

    def find(self, round_id: str) -> LoadRound:
        """A round by its id; a client may hear of it before the answer to its opening is here."""
        return self._under_way.setdefault(round_id, LoadRound(round_id))

    async def keep_going(self, take_part: TakePart, is_polling: Callable[[str], bool]) -> None:
        """Open rounds as long as they can end in time. Clients that poll find out by themselves."""
        due_s = self._measured.begins_s
        while due_s + self.uploads_within_s <= self._measured.ends_s:
            await self._measured.wait_until(due_s)
            if self._hears:
                await self._play(take_part, is_polling)
                due_s = max(due_s + self._round_every_s, time.monotonic())
            else:
                due_s = time.monotonic() + _LOOK_AGAIN_S

    async def follow(self) -> None:
        """Hear how the rounds end; a break of the stream is an error, and ends the wait for a round."""
        while True:
            try:
                async with self._api.events(self._task_id) as events:
                    self._hears = True
                    async for event in events:
                        self._note(event)
            except FedCSError as error:
                self._measured.failed(Operation.EVENTS, kind_of(error))
            self._hears = False
            for round_ in self._under_way.values():
                round_.note_over("stream of events broken")
            await asyncio.sleep(_AFTER_BREAK_S)

    async def _play(self, take_part: TakePart, is_polling: Callable[[str], bool]) -> None:
        if self._left_open is not None:
            await self._measured.send(Operation.CLOSE_ROUND, calls.close_round(self._left_open))
            self._left_open = None
        opened = await self._measured.send(Operation.OPEN_ROUND, calls.open_round(self._task_id))
        if opened is None:
            return
        if opened.schedule is None or not opened.schedule.slots:
            self._measured.failed(Operation.OPEN_ROUND, opened.outcome or "nobody selected")
            return
        slots = opened.schedule.slots
        round_ = self.find(opened.round_id)
        round_.note_opened(len(slots))
        async with asyncio.TaskGroup() as devices:
            for slot in slots:
                if not is_polling(slot.client_id):
                    devices.create_task(take_part(round_, slot))
            await _wait(round_.all_ended)
        if not (round_.is_complete or round_.over.is_set()):
            await self._measured.send(Operation.CLOSE_ROUND, calls.close_round(round_.round_id))
        await self._await_end(round_)
        del self._under_way[round_.round_id]

    async def _await_end(self, round_: LoadRound) -> None:
        with self._measured.counting_unanswered(Operation.AGGREGATION):
            await _wait(round_.over)
        if round_.outcome == RoundState.AGGREGATED:
            self.aggregated += 1
            self._measured.answered(Operation.AGGREGATION, time.monotonic() - round_.last_upload_s)
        else:
            if round_.outcome not in _ENDINGS:
                self._left_open = round_.round_id
            kind = f"not aggregated within {_PATIENCE_S:g} s" if round_.outcome is None else round_.outcome
            self._measured.failed(Operation.AGGREGATION, kind)

    def _note(self, event: EventResponse) -> None:
        state = event.kind.removeprefix("round.")
        if state in _ENDINGS and event.round_id in self._under_way:
            self._under_way[event.round_id].note_over(state)


async def _wait(happened: asyncio.Event) -> None:
    """Wait, but not for ever: for what does not happen there is another way on."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            await happened.wait()
