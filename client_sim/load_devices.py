"""What the simulated clients of a load test do: report, ask what there is to do, fetch the model, upload."""

import asyncio
import random
import time

from client_sim import calls
from client_sim.calls import Body
from client_sim.fleet import Fleet
from client_sim.load_latency import Measured, Operation
from client_sim.load_round import LoadRound, LoadRounds
from client_sim.stand_in import StandInUpdates
from services.contract.plans import Slot
from services.contract.reports import ReportRequest
from services.contract.rounds import AssignmentsResponse, TrainAssignment

_POLLS_BEGIN_WITHIN_S = 5.0
_AFTER_ERROR_S = 1.0


class LoadDevices:
    """The clients, each an asyncio task or two."""

    def __init__(
        self, measured: Measured, fleet: Fleet, rounds: LoadRounds, report_every_s: float, poll_wait_s: float
    ) -> None:
        self._measured = measured
        self._fleet = fleet
        self._rounds = rounds
        self._report_every_s = report_every_s
        self._poll_wait_s = poll_wait_s

    async def keep_reporting(self, number: int) -> None:
        """Report every so often, the first time at a random moment.

        Each report is due at its own moment, however long those before it took.
        """
        client_id = self._fleet.client_id(number)
        key = self._fleet.key(client_id)
        reports = self._fleet.reports
        report = ReportRequest(
            client_id=client_id,
            throughput_bps=float(reports.throughput_bps[number]),
            compute_samples_per_s=float(reports.compute_samples_per_s[number]),
            data_samples=int(reports.data_samples[number]),
        )
        call = calls.post_report(report)
        due_s = self._measured.begins_s + random.uniform(0, self._report_every_s)  # noqa: S311
        while due_s < self._measured.ends_s:
            await self._measured.wait_until(due_s)
            await self._measured.send(Operation.REPORT, call, key, due_s)
            due_s += self._report_every_s

    async def keep_polling(self, number: int) -> None:
        """Ask what there is to do by long polls, and do it."""
        client_id = self._fleet.client_id(number)
        key = self._fleet.key(client_id)
        first_s = random.uniform(0, min(_POLLS_BEGIN_WITHIN_S, self._poll_wait_s))  # noqa: S311
        await self._measured.wait_until(self._measured.begins_s + first_s)
        while (began_s := time.monotonic()) < self._measured.ends_s:
            wait_s = round(min(self._poll_wait_s, self._measured.ends_s - began_s), 3)
            told = await self._measured.attempt(Operation.LONG_POLL, calls.assignments(wait_s), key)
            if told is None:
                await asyncio.sleep(_AFTER_ERROR_S)
            elif (assignment := _to_train(told)) is None:
                self._measured.answered(Operation.LONG_POLL, max(0.0, time.monotonic() - began_s - wait_s))
                await self._measured.wait_until(began_s + wait_s)  # A service that stops answers early.
            else:
                round_ = self._rounds.find(assignment.round_id)
                since_s = max(began_s, round_.opened_s)
                self._measured.answered(Operation.LONG_POLL, time.monotonic() - since_s)
                if not await self.take_part(round_, assignment.slot):
                    await asyncio.sleep(_AFTER_ERROR_S)

    async def take_part(self, round_: LoadRound, slot: Slot) -> bool:
        """Fetch the model, and upload a stand-in update at a random moment; whether this went well."""
        key = self._fleet.key(slot.client_id)
        sent = None
        model = await self._measured.send(Operation.DOWNLOAD, calls.round_model(round_.round_id), key)
        if model is not None:
            if round_.updates is None:
                round_.updates = StandInUpdates(model)
            call = calls.upload_update(
                round_.round_id,
                slot.client_id,
                Body(round_.updates.of(self._fleet.number(slot.client_id))),
                self._fleet.data_samples(slot.client_id),
                elapsed_s=slot.window_end_s,
            )
            due_s = round_.opened_s + random.uniform(0, self._rounds.uploads_within_s)  # noqa: S311
            due_s = max(due_s, time.monotonic())
            await self._measured.wait_until(due_s)
            sent = await self._measured.send(Operation.UPLOAD, call, key, due_s)
        round_.note_end(slot.client_id, is_uploaded=sent is not None)
        return sent is not None


def _to_train(told: AssignmentsResponse) -> TrainAssignment | None:
    return next((one for one in told.assignments if isinstance(one, TrainAssignment)), None)
