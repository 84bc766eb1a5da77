"""Resource reports of candidates, the drawing of candidates, and estimated times."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.domain.nanoseconds import NEVER_NS, Nanoseconds, round_to_ns

Positions: TypeAlias = npt.NDArray[np.intp]
"""Positions in the list of candidates."""

REPORT_RESOURCE_BLOCKS = 10
"""The resource blocks that a reported throughput refers to by default."""


@dataclass(frozen=True)
class ResourceReports:
    """The reports of the candidates: one column per field, one row per candidate."""

    throughput_bps: npt.NDArray[np.float64]
    compute_samples_per_s: npt.NDArray[np.float64]
    data_samples: npt.NDArray[np.int64]
    resource_blocks: int = REPORT_RESOURCE_BLOCKS
    """The number of resource blocks that ``throughput_bps`` refers to."""

    def __len__(self) -> int:
        return len(self.throughput_bps)

    def of(self, positions: Positions) -> "ResourceReports":
        """The reports of some of the candidates, in the order asked for."""
        return replace(
            self,
            throughput_bps=self.throughput_bps[positions],
            compute_samples_per_s=self.compute_samples_per_s[positions],
            data_samples=self.data_samples[positions],
        )


@dataclass(frozen=True)
class LocalWork:
    """The work of a selected client in a round, and its resource blocks."""

    upload_size_bytes: int
    local_epochs: int = 5
    resource_blocks: int = REPORT_RESOURCE_BLOCKS
    download_size_bytes: int | None = None
    """None: the same as the upload."""


@dataclass(frozen=True)
class EstimatedTimes:
    """How long each candidate needs to update the model, to upload the update, and to download the model."""

    update_ns: Nanoseconds
    upload_ns: Nanoseconds
    download_ns: Nanoseconds
    """The same array as ``upload_ns`` where both have the same size: selection is faster then."""

    def __len__(self) -> int:
        return len(self.update_ns)

    def of(self, positions: Positions) -> "EstimatedTimes":
        """The times of some of the candidates, in the order asked for."""
        upload_ns = self.upload_ns[positions]
        same = self.download_ns is self.upload_ns
        return EstimatedTimes(
            self.update_ns[positions], upload_ns, upload_ns if same else self.download_ns[positions]
        )

    def scaled(self, factor: float) -> "EstimatedTimes":
        """The times multiplied by a factor."""
        if factor == 1:
            return self
        upload_ns = _scaled(self.upload_ns, factor)
        same = self.download_ns is self.upload_ns
        return EstimatedTimes(
            _scaled(self.update_ns, factor),
            upload_ns,
            upload_ns if same else _scaled(self.download_ns, factor),
        )

    def fit_alone(self, available_ns: int) -> npt.NDArray[np.bool_]:
        """Whether each would fit alone in this much time to distribute, update and upload."""
        needed_ns = self.download_ns + self.upload_ns
        needed_ns += self.update_ns
        return needed_ns < available_ns

    def distribution_ns(self) -> int:
        """Time to multicast the model to all of them: the slowest download among them."""
        return int(self.download_ns.max(initial=0))

    def fit_longest_round(self) -> npt.NDArray[np.bool_]:
        """Which of them can be in one round without a deadline.

        Each alone takes less than half of ``NEVER_NS`` (18 years), and so do all uploads one after another;
        if not, the slowest uploaders are excluded.
        """
        by_upload = np.argsort(self.upload_ns, kind="stable")
        uploaded_ns = np.cumsum(self.upload_ns[by_upload], dtype=np.float64)
        fit = np.empty(len(self), dtype=np.bool_)
        fit[by_upload] = uploaded_ns < NEVER_NS // 2
        return fit & self.fit_alone(NEVER_NS // 2)


def estimate_times(reports: ResourceReports, work: LocalWork) -> EstimatedTimes:
    """Estimate from the reports; throughput is taken as proportional to the resource blocks.

    Each time is rounded once, so the download time is not a multiple of the upload time.
    """
    throughput_bps = reports.throughput_bps * (work.resource_blocks / reports.resource_blocks)
    with np.errstate(over="ignore", divide="ignore"):  # larger values are cut off at NEVER_NS
        update_s = reports.data_samples * work.local_epochs / reports.compute_samples_per_s
    upload_ns = download_ns = _transfer_ns(work.upload_size_bytes, throughput_bps)
    if work.download_size_bytes is not None and work.download_size_bytes != work.upload_size_bytes:
        download_ns = _transfer_ns(work.download_size_bytes, throughput_bps)
    return EstimatedTimes(round_to_ns(update_s), upload_ns, download_ns)


def _scaled(durations_ns: Nanoseconds, factor: float) -> Nanoseconds:
    scaled_ns: Nanoseconds = np.minimum(np.rint(durations_ns * factor), NEVER_NS).astype(np.int64)
    return scaled_ns


def _transfer_ns(size_bytes: int, throughput_bps: npt.NDArray[np.float64]) -> Nanoseconds:
    with np.errstate(over="ignore", divide="ignore"):
        return round_to_ns(8 * size_bytes / throughput_bps)


def count_candidates(clients: int, request_fraction: float) -> int:
    """Calculate ⌈K·C⌉ with the fraction as it is written: 7 % of 100 clients are 7, not 8."""
    return math.ceil(clients * Fraction(str(request_fraction)))


def draw_candidates(clients: int, request_fraction: float, rng: np.random.Generator) -> Positions:
    """Draw ⌈K·C⌉ of the clients, each set of them as likely as any other, in random order."""
    return rng.choice(clients, size=count_candidates(clients, request_fraction), replace=False)
