"""Implausible reports: above the peak rate of the cell, or far above what other clients report.

Only figures that are too high are looked for. A low one costs its client a slot, and nobody else anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from services.domain.radio import PerClient
from services.domain.resources import ResourceReports

FLEET_SAMPLE = 500
"""So many clients, evenly spread, stand for the fleet."""
MIN_FLEET = 20
"""With fewer reports there is no fleet to compare with."""
_FENCE = 3.0
"""So many interquartile ranges above the third quartile, on a logarithmic scale."""
_LEAST_MULTIPLE = 10.0
"""Of the third quartile, in a fleet of equal devices."""
_ROUNDING = 1 + 1e-9


class ImplausibleReason(StrEnum):
    """Why a reported figure is implausible."""

    PEAK_RATE = "PEAK_RATE"
    """Above the peak rate of the client's cell for the resource blocks it refers to."""
    FLEET_RANGE = "FLEET_RANGE"
    """Far above what the other clients report."""


@dataclass(frozen=True)
class FleetRange:
    """The highest plausible figures, by what the fleet reports."""

    throughput_bps: float
    """For ``REPORT_RESOURCE_BLOCKS``."""
    compute_samples_per_s: float

    @classmethod
    def of(cls, reports: ResourceReports) -> "FleetRange | None":
        """The outer fence of Tukey's box plot on a logarithmic scale; none of a small fleet."""
        if len(reports) < MIN_FLEET:
            return None
        return cls(_outer_fence(reports.throughput_bps), _outer_fence(reports.compute_samples_per_s))


def _outer_fence(figures: PerClient) -> float:
    first, third = np.quantile(figures, (0.25, 0.75))
    with np.errstate(over="ignore"):
        return float(third * max((third / first) ** _FENCE, _LEAST_MULTIPLE))


@dataclass(frozen=True)
class ImplausibleFigure:
    """A reported figure that is implausible; throughput is for ``REPORT_RESOURCE_BLOCKS``."""

    figure: str
    reason: ImplausibleReason
    reported: float
    limit: float


@dataclass(frozen=True)
class PlausibleLimits:
    """The highest plausible figures of clients, one row per client."""

    peak_bps: PerClient
    """Of the client's cell, for ``REPORT_RESOURCE_BLOCKS``."""
    fleet: FleetRange | None

    def cap(self, reports: ResourceReports) -> ResourceReports:
        """The reports, with implausible figures reduced to the highest plausible ones."""
        throughput_bps = np.minimum(reports.throughput_bps, self.peak_bps)
        if self.fleet is None:
            return replace(reports, throughput_bps=throughput_bps)
        return replace(
            reports,
            throughput_bps=np.minimum(throughput_bps, self.fleet.throughput_bps),
            compute_samples_per_s=np.minimum(reports.compute_samples_per_s, self.fleet.compute_samples_per_s),
        )

    def find(self, reports: ResourceReports) -> list[list[ImplausibleFigure]]:
        """The implausible figures of each client."""
        rows = zip(
            reports.throughput_bps.tolist(),
            reports.compute_samples_per_s.tolist(),
            self.peak_bps.tolist(),
            strict=True,
        )
        return [list(self._implausible(*row)) for row in rows]

    def _implausible(
        self, throughput_bps: float, compute_samples_per_s: float, peak_bps: float
    ) -> Iterator[ImplausibleFigure]:
        peak, fleet = ImplausibleReason.PEAK_RATE, ImplausibleReason.FLEET_RANGE
        if throughput_bps > peak_bps * _ROUNDING:
            yield ImplausibleFigure("throughput_bps", peak, throughput_bps, peak_bps)
        elif self.fleet is not None and throughput_bps > self.fleet.throughput_bps:
            yield ImplausibleFigure("throughput_bps", fleet, throughput_bps, self.fleet.throughput_bps)
        if self.fleet is not None and compute_samples_per_s > self.fleet.compute_samples_per_s:
            limit = self.fleet.compute_samples_per_s
            yield ImplausibleFigure("compute_samples_per_s", fleet, compute_samples_per_s, limit)
