"""The devices of a cell: drawn by a scenario's seed, enrolled, and reporting their resources.

They are columns of numbers, not objects: a hundred thousand of them take a few megabytes.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.scenario import Scenario, scaled_reports
from services.contract.clients import MAX_BATCH as MAX_ENROLMENTS
from services.contract.clients import EnrolmentRequest
from services.contract.reports import MAX_BATCH as MAX_REPORTS
from services.contract.reports import ReportRequest
from services.domain.radio import PerClient
from services.domain.resources import ResourceReports
from services.errors import FedCSError


class FleetError(FedCSError):
    """The service does not know devices of the fleet, or not any more."""

    cause: ClassVar[str] = "FLEET_NOT_KNOWN"


@dataclass(eq=False)
class Fleet:
    """The devices, by their numbers: each holds the part of the data set that has its number."""

    name: str
    """Client ids begin with it, and it is the fleet's label."""
    distances_m: PerClient
    reports: ResourceReports
    keys: list[str] = field(repr=False)
    """Of the devices that are enrolled."""
    _report_again_at_s: float = 0.0

    @classmethod
    def draw(cls, scenario: Scenario, name: str, time_scale: float = 1.0, keys: Sequence[str] = ()) -> Self:
        """The devices of a scenario; on a clock ``time_scale`` times as fast.

        Those that were enrolled before have ``keys``.
        """
        cell, rng = scenario.cell.cell(), np.random.default_rng(scenario.seed)
        distances_m = cell.place(scenario.cell.clients, rng)
        return cls(
            name, distances_m, scaled_reports(cell.reports_at(distances_m, rng), time_scale), list(keys)
        )

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def labels(self) -> Mapping[str, str]:
        """What a task asks for to have these devices, and no others."""
        return {"fleet": self.name}

    def client_id(self, number: int) -> str:
        """What the service calls the device of this number."""
        return f"{self.name}-{number}"

    def number(self, client_id: str) -> int:
        """Which device the service calls so."""
        return int(client_id.removeprefix(f"{self.name}-"))

    def key(self, client_id: str) -> str:
        """The key of an enrolled device."""
        return self.keys[self.number(client_id)]

    def data_samples(self, client_id: str) -> int:
        """How many samples a device holds."""
        return int(self.reports.data_samples[self.number(client_id)])

    async def enrol(self, api: AsyncApi) -> None:
        """Enrol the devices that are not, in batches; the service shows their keys this once."""
        labels = dict(self.labels)
        for numbers in _batches(len(self.keys), len(self), MAX_ENROLMENTS):
            asked = [EnrolmentRequest(client_id=self.client_id(number), labels=labels) for number in numbers]
            answer = await api.send(calls.enrol_clients(asked))
            self.keys.extend(client.api_key for client in answer.clients)

    async def keep_reported(self, api: AsyncApi, max_age_s: float) -> None:
        """Report anew if half of the time has passed for which a report counts."""
        if time.monotonic() >= self._report_again_at_s:
            self._report_again_at_s = time.monotonic() + max_age_s / 2
            await self.report(api)

    async def report(self, api: AsyncApi) -> None:
        """Report the resources of every device, in batches."""
        columns = (
            self.reports.throughput_bps.tolist(),
            self.reports.compute_samples_per_s.tolist(),
            self.reports.data_samples.tolist(),
        )
        for numbers in _batches(0, len(self), MAX_REPORTS):
            told = [
                ReportRequest(
                    client_id=self.client_id(number),
                    throughput_bps=throughput_bps,
                    compute_samples_per_s=compute_samples_per_s,
                    data_samples=data_samples,
                )
                for number, throughput_bps, compute_samples_per_s, data_samples in zip(
                    numbers, *(column[numbers.start : numbers.stop] for column in columns), strict=True
                )
            ]
            answer = await api.send(calls.post_reports(told))
            for result in answer.results:
                if result["cause"] is not None:
                    raise FleetError(f"the report of {result['client_id']!r} was refused: {result['cause']}")


def _batches(start: int, stop: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, stop)) for first in range(start, stop, size))
