"""The rounds and the clients of a load test."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from client_sim.fleet import Fleet
from client_sim.load_report import CallRecorder, Operation, error_kind
from client_sim.synthetic_updates import SyntheticUpdates
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from fedcs_client.encoding import UNENCODED, TransferTerms
from fedcs_client.endpoints import Assignments, Body
from services.contract.assignments import TrainAssignment
from services.contract.common import EventResponse
from services.contract.plans import Slot
from services.domain.rounds import RoundState
from services.errors import FedCSError

_TIMEOUT_S = 60.0
_RECONNECT_S = 1.0
_POLL_S = 0.05
_UPLOADS_SHARE = 0.8
"""Uploads start in this share of the interval between rounds."""
_ENDINGS = {RoundState.AGGREGATED, RoundState.FAILED, RoundState.CANCELLED}


class LoadRound:
    """A round in progress."""

    def __init__(self, round_id: str) -> None:
        self.round_id = round_id
        self.opened_s = time.monotonic()
        self.updates: SyntheticUpdates | None = None
        """Set after the first download of the model."""
        self.last_upload_s = self.opened_s
        self.outcome: str | None = None
        self._selected: int | None = None
        self._ended: dict[str, bool] = {}
        self.all_ended = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether all selected clients have uploaded."""
        return len(self._ended) == self._selected and all(self._ended.values())

    def set_selected(self, selected: int) -> None:
        """Set the number of selected clients."""
        self._selected = selected
        self._check_end()

    def record_end(self, client_id: str, *, is_uploaded: bool) -> None:
        """Record that a client has uploaded or failed."""
        self._ended[client_id] = is_uploaded
        self.last_upload_s = time.monotonic()
        self._check_end()

    def finish(self, outcome: str) -> None:
        """Record the end of the round, or the loss of the event stream."""
        self.outcome = outcome
        self.all_ended.set()
        self.ended.set()

    def _check_end(self) -> None:
        if len(self._ended) == self._selected:
            self.all_ended.set()


Participate = Callable[[LoadRound, Slot], Coroutine[Any, Any, bool]]


class LoadRounds:
    """Opens a round at every interval, or when the last one has ended if that is later."""

    def __init__(self, api: AsyncApi, recorder: CallRecorder, task_id: str, round_every_s: float) -> None:
        self._api = api
        self._recorder = recorder
        self._task_id = task_id
        self._round_every_s = round_every_s
        self._open_rounds: dict[str, LoadRound] = {}
        self._unclosed_round: str | None = None
        self._connected = False
        self.aggregated = 0
        self.uploads_within_s = _UPLOADS_SHARE * round_every_s

    def find(self, round_id: str) -> LoadRound:
        """A round by id; a client may see it before the response to its opening arrives."""
        return self._open_rounds.setdefault(round_id, LoadRound(round_id))

    async def run_rounds(self, participate: Participate, is_polling: Callable[[str], bool]) -> None:
        """Open rounds while they can end in time; clients that poll start by themselves."""
        due_s = self._recorder.starts_s
        while due_s + self.uploads_within_s <= self._recorder.ends_s:
            await self._recorder.wait_until(due_s)
            if self._connected:
                await self._run_round(participate, is_polling)
                due_s = max(due_s + self._round_every_s, time.monotonic())
            else:
                due_s = time.monotonic() + _POLL_S

    async def follow(self) -> None:
        """Follow the events of the rounds; a broken stream counts as an error and ends open rounds."""
        while True:
            try:
                async with self._api.events(self._task_id) as events:
                    self._connected = True
                    async for event in events:
                        self._note(event)
            except FedCSError as error:
                self._recorder.record_error(Operation.EVENTS, error_kind(error))
            self._connected = False
            for round_ in self._open_rounds.values():
                round_.finish("event stream broken")
            await asyncio.sleep(_RECONNECT_S)

    async def _run_round(self, participate: Participate, is_polling: Callable[[str], bool]) -> None:
        if self._unclosed_round is not None:
            await self._recorder.send(Operation.CLOSE_ROUND, endpoints.close_round(self._unclosed_round))
            self._unclosed_round = None
        opened = await self._recorder.send(Operation.OPEN_ROUND, endpoints.open_round(self._task_id))
        if opened is None:
            return
        if opened.schedule is None or not opened.schedule.slots:
            self._recorder.record_error(Operation.OPEN_ROUND, opened.outcome or "no client selected")
            return
        slots = opened.schedule.slots
        round_ = self.find(opened.round_id)
        round_.set_selected(len(slots))
        async with asyncio.TaskGroup() as devices:
            for slot in slots:
                if not is_polling(slot.client_id):
                    devices.create_task(participate(round_, slot))
            await _wait(round_.all_ended)
        if not (round_.is_complete or round_.ended.is_set()):
            await self._recorder.send(Operation.CLOSE_ROUND, endpoints.close_round(round_.round_id))
        await self._await_end(round_)
        del self._open_rounds[round_.round_id]

    async def _await_end(self, round_: LoadRound) -> None:
        with self._recorder.recording_timeouts(Operation.AGGREGATION):
            await _wait(round_.ended)
        if round_.outcome == RoundState.AGGREGATED:
            self.aggregated += 1
            self._recorder.record_response(Operation.AGGREGATION, time.monotonic() - round_.last_upload_s)
        else:
            if round_.outcome not in _ENDINGS:
                self._unclosed_round = round_.round_id
            kind = f"not aggregated within {_TIMEOUT_S:g} s" if round_.outcome is None else round_.outcome
            self._recorder.record_error(Operation.AGGREGATION, kind)

    def _note(self, event: EventResponse) -> None:
        state = event.kind.removeprefix("round.")
        if state in _ENDINGS and event.round_id in self._open_rounds:
            self._open_rounds[event.round_id].finish(state)


async def _wait(event: asyncio.Event) -> None:
    """Wait for an event, but not longer than the timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            await event.wait()


_POLLS_BEGIN_WITHIN_S = 5.0
_AFTER_ERROR_S = 1.0


class LoadDevices:
    """The simulated clients."""

    def __init__(
        self,
        recorder: CallRecorder,
        fleet: Fleet,
        rounds: LoadRounds,
        report_every_s: float,
        poll_wait_s: float,
        *,
        terms: TransferTerms = UNENCODED,
    ) -> None:
        self._terms = terms
        self._recorder = recorder
        self._fleet = fleet
        self._rounds = rounds
        self._report_every_s = report_every_s
        self._poll_wait_s = poll_wait_s

    async def report_loop(self, number: int) -> None:
        """Report at a fixed interval from a random start, however long earlier reports took."""
        client_id = self._fleet.client_id(number)
        key = self._fleet.key(client_id)
        call = endpoints.post_report(self._fleet.report_of(number))
        due_s = self._recorder.starts_s + random.uniform(0, self._report_every_s)  # noqa: S311
        while due_s < self._recorder.ends_s:
            await self._recorder.wait_until(due_s)
            await self._recorder.send(Operation.REPORT, call, key, due_s)
            due_s += self._report_every_s

    async def poll_loop(self, number: int) -> None:
        """Long-poll for assignments, and take part in rounds."""
        client_id = self._fleet.client_id(number)
        key = self._fleet.key(client_id)
        first_s = random.uniform(0, min(_POLLS_BEGIN_WITHIN_S, self._poll_wait_s))  # noqa: S311
        await self._recorder.wait_until(self._recorder.starts_s + first_s)
        known = None
        while (began_s := time.monotonic()) < self._recorder.ends_s:
            wait_s = round(min(self._poll_wait_s, self._recorder.ends_s - began_s), 3)
            call = endpoints.assignments(wait_s, known)
            polled = await self._recorder.send_untimed(Operation.LONG_POLL, call, key)
            if polled is None:
                await asyncio.sleep(_AFTER_ERROR_S)
            elif polled is known:
                self._recorder.record_response(
                    Operation.LONG_POLL, max(0.0, time.monotonic() - began_s - wait_s)
                )
                await self._recorder.wait_until(began_s + wait_s)  # the service answers early when it stops
            elif (assignment := _to_train(polled)) is not None:
                round_ = self._rounds.find(assignment.round_id)
                since_s = max(began_s, round_.opened_s)
                self._recorder.record_response(Operation.LONG_POLL, time.monotonic() - since_s)
                if await self.participate(round_, assignment.slot):
                    known = polled
                else:
                    await asyncio.sleep(_AFTER_ERROR_S)
            else:
                known = polled

    async def participate(self, round_: LoadRound, slot: Slot) -> bool:
        """Download the model and upload a synthetic update at a random time; return whether it succeeded."""
        key = self._fleet.key(slot.client_id)
        sent = None
        model = await self._recorder.send(Operation.DOWNLOAD, endpoints.round_model(round_.round_id), key)
        if model is not None:
            if round_.updates is None:
                round_.updates = SyntheticUpdates(model, self._terms)
            call = endpoints.upload_update(
                round_.round_id,
                slot.client_id,
                Body(round_.updates.of(self._fleet.number(slot.client_id))),
                self._fleet.data_samples(slot.client_id),
                encoding=self._terms.update_encoding,
                elapsed_s=slot.window_end_s,
            )
            due_s = round_.opened_s + random.uniform(0, self._rounds.uploads_within_s)  # noqa: S311
            due_s = max(due_s, time.monotonic())
            await self._recorder.wait_until(due_s)
            sent = await self._recorder.send(Operation.UPLOAD, call, key, due_s)
        round_.record_end(slot.client_id, is_uploaded=sent is not None)
        return sent is not None


def _to_train(polled: Assignments) -> TrainAssignment | None:
    return next((found for found in polled.assignments if isinstance(found, TrainAssignment)), None)
