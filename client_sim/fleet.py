"""The simulated devices of a cell: drawn from the scenario's seed, enrolled, and reported.

They are arrays, not objects: 100,000 devices take a few megabytes.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from client_sim.scenario import NetworkCell, Scenario, scaled_reports
from client_sim.traces import load_phone_speeds
from client_sim.uplinks import MIN_THROUGHPUT_BPS, RoundUplinks, Uplinks, draw_uplinks
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.cells import CellChangeRequest, CellRequest
from services.contract.clients import MAX_BATCH as MAX_ENROLMENTS
from services.contract.clients import EnrolmentRequest
from services.contract.reports import MAX_BATCH as MAX_REPORTS
from services.contract.reports import ReportRequest
from services.contract.rounds import ScheduleResponse
from services.domain.cells import DEFAULT_CELL
from services.domain.nanoseconds import to_ns
from services.domain.radio import PerClient
from services.domain.resources import ResourceReports
from services.errors import ClientNotFoundError, FedCSError

_PARALLEL_REMOVALS = 4
_REMOVAL_TIMEOUT_S = 10.0


class FleetError(FedCSError):
    """The service rejects a report of the fleet."""

    cause: ClassVar[str] = "FLEET_NOT_KNOWN"


@dataclass(eq=False)
class Fleet:
    """The devices, by number. A device holds the data partition of the same number."""

    name: str
    """The prefix of the client ids, and the value of the label ``fleet``."""
    distances_m: PerClient
    reports: ResourceReports
    keys: list[str] = field(repr=False)
    """API keys of the enrolled devices."""
    cells: Sequence[NetworkCell] = ()
    """The devices are in these in turn; none: in the default cell."""
    uplinks: Uplinks | None = None
    """None: the throughput does not change between reports."""
    _report_again_at_s: float = 0.0

    @classmethod
    def draw(cls, scenario: Scenario, name: str, time_scale: float = 1.0, keys: Sequence[str] = ()) -> Self:
        """Draw the devices of a scenario; ``keys`` are those of devices that are enrolled already."""
        cell, rng = scenario.cell.cell(), np.random.default_rng(scenario.seed)
        distances_m = cell.place(scenario.cell.clients, rng)
        drawn = scaled_reports(cell.reports_at(distances_m, rng), time_scale)
        reports = replace(drawn, throughput_bps=np.maximum(drawn.throughput_bps, MIN_THROUGHPUT_BPS))
        if scenario.traces is not None and scenario.traces.phones is not None:
            speeds = rng.choice(load_phone_speeds(Path(scenario.traces.phones)), len(reports))
            fastest = time_scale * scenario.cell.compute_samples_per_s[1]
            reports = replace(reports, compute_samples_per_s=fastest * speeds)
        fleet = cls(name, distances_m, reports, list(keys), scenario.cells)
        fleet.uplinks = draw_uplinks(scenario, distances_m, time_scale)
        if fleet.uplinks is not None:
            rates_bps = np.array([fleet.throughput_bps(number, 0.0) for number in range(len(fleet))])
            fleet.reports = replace(reports, throughput_bps=rates_bps)
        return fleet

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that select exactly these devices."""
        return {"fleet": self.name}

    def client_id(self, number: int) -> str:
        """The client id of a device."""
        return f"{self.name}-{number}"

    def cell_id(self, number: int) -> str:
        """The cell of a device."""
        return self.cells[number % len(self.cells)].cell_id if self.cells else DEFAULT_CELL

    def number(self, client_id: str) -> int:
        """The number of a device."""
        return int(client_id.removeprefix(f"{self.name}-"))

    def key(self, client_id: str) -> str:
        """The API key of an enrolled device."""
        return self.keys[self.number(client_id)]

    def data_samples(self, client_id: str) -> int:
        """The number of samples of a device."""
        return int(self.reports.data_samples[self.number(client_id)])

    def throughput_bps(self, number: int, at_s: float) -> float:
        """The throughput that a device reports at a time of the run."""
        if self.uplinks is None:
            return float(self.reports.throughput_bps[number])
        return max(self.uplinks.throughput_bps(number, to_ns(at_s)), MIN_THROUGHPUT_BPS)

    def round_uplinks(self, schedule: ScheduleResponse, began_s: float) -> RoundUplinks | None:
        """The uplinks during a round that began at a time of the run; None: they do not change."""
        if self.uplinks is None:
            return None
        return RoundUplinks(self.uplinks, self.number, schedule, began_s)

    def report_of(self, number: int, at_s: float = 0.0) -> ReportRequest:
        """The resource report of a device at a time of the run."""
        return ReportRequest(
            client_id=self.client_id(number),
            throughput_bps=self.throughput_bps(number, at_s),
            compute_samples_per_s=float(self.reports.compute_samples_per_s[number]),
            data_samples=int(self.reports.data_samples[number]),
        )

    async def enrol(self, api: AsyncApi) -> None:
        """Enrol the devices that are not enrolled yet, in batches, and keep their API keys."""
        labels = dict(self.labels)
        for cell in self.cells:
            await _add_cell(api, cell)
        for numbers in _batches(len(self.keys), len(self), MAX_ENROLMENTS):
            requests = [
                EnrolmentRequest(
                    client_id=self.client_id(number), labels=labels, cell_id=self.cell_id(number)
                )
                for number in numbers
            ]
            answer = await api.send(endpoints.enrol_clients(requests))
            self.keys.extend(client.api_key for client in answer.clients)

    async def remove(self, api: AsyncApi, within_s: float | None = None) -> int:
        """Remove the devices from the service; return how many may still be enrolled."""
        numbers, removed = iter(range(len(self))), []

        async def remove_next() -> None:
            with suppress(FedCSError, TimeoutError):
                for number in numbers:
                    await asyncio.wait_for(_remove(api, self.client_id(number)), _REMOVAL_TIMEOUT_S)
                    removed.append(number)

        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(remove_next() for _ in range(_PARALLEL_REMOVALS)))
        return len(self) - len(removed)

    async def report_if_due(self, api: AsyncApi, max_age_s: float, at_s: float) -> None:
        """Report again if half of ``max_age_s`` has passed since the last time, or uplinks change."""
        if self.uplinks is not None or time.monotonic() >= self._report_again_at_s:
            self._report_again_at_s = time.monotonic() + max_age_s / 2
            await self.report(api, at_s)

    async def report(self, api: AsyncApi, at_s: float = 0.0) -> None:
        """Report the resources of every device at a time of the run, in batches."""
        for numbers in _batches(0, len(self), MAX_REPORTS):
            answer = await api.send(
                endpoints.post_reports([self.report_of(number, at_s) for number in numbers])
            )
            for result in answer.results:
                if result["cause"] is not None:
                    raise FleetError(f"the report of {result['client_id']!r} was rejected: {result['cause']}")


async def _add_cell(api: AsyncApi, cell: NetworkCell) -> None:
    """Add a cell to the service, or set its resource blocks if it exists."""
    try:
        await api.send(endpoints.add_cell(CellRequest(**cell.model_dump())))
    except ApiError as error:
        if error.problem.cause != "CELL_EXISTS":
            raise
        change = CellChangeRequest(resource_blocks=cell.resource_blocks)
        await api.send(endpoints.change_cell(cell.cell_id, change))


async def _remove(api: AsyncApi, client_id: str) -> None:
    try:
        await api.send(endpoints.remove_client(client_id))
    except ApiError as refused:
        if refused.problem.cause != ClientNotFoundError.cause:
            raise


def _batches(start: int, stop: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, stop)) for first in range(start, stop, size))
