"""What clients report, and how long each of them will need (Section III-C of the paper)."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.domain.nanoseconds import NEVER_NS, Nanoseconds, round_to_ns
from services.domain.radio import REPORT_RESOURCE_BLOCKS

Positions: TypeAlias = npt.NDArray[np.intp]
"""Positions in the list of candidates."""


@dataclass(frozen=True)
class ResourceReports:
    """What the candidates told about themselves: one column per field, one row per candidate."""

    throughput_bps: npt.NDArray[np.float64]
    compute_samples_per_s: npt.NDArray[np.float64]
    data_samples: npt.NDArray[np.int64]
    resource_blocks: int = REPORT_RESOURCE_BLOCKS
    """What ``throughput_bps`` refers to."""

    def __len__(self) -> int:
        return len(self.throughput_bps)


@dataclass(frozen=True)
class LocalWork:
    """What a selected client has to do in a round, and the resource blocks it has for that."""

    model_size_bytes: int
    local_epochs: int = 5
    resource_blocks: int = REPORT_RESOURCE_BLOCKS


@dataclass(frozen=True)
class EstimatedTimes:
    """How long each candidate needs to update the model, and then to upload it."""

    update_ns: Nanoseconds
    upload_ns: Nanoseconds

    def __len__(self) -> int:
        return len(self.update_ns)

    def of(self, positions: Positions) -> "EstimatedTimes":
        """The times of some of the candidates, in the order asked for."""
        return EstimatedTimes(self.update_ns[positions], self.upload_ns[positions])

    def fit_alone(self, available_ns: int) -> npt.NDArray[np.bool_]:
        """Whether each would fit alone in this much time to distribute, update and upload."""
        needed_ns = self.upload_ns + self.upload_ns
        needed_ns += self.update_ns
        return needed_ns < available_ns

    def distribution_ns(self) -> int:
        """Time to multicast the model to all of them: the worst radio sets the pace."""
        return int(self.upload_ns.max(initial=0))

    def never_done(self) -> bool:
        """Whether all of them one after another would take longer than time is counted here."""
        upload_ns = float(self.upload_ns.sum(dtype=np.float64))
        return float(self.update_ns.max(initial=0)) + 2 * upload_ns >= NEVER_NS


def estimate_times(reports: ResourceReports, work: LocalWork) -> EstimatedTimes:
    """Estimate from the reports; throughput is taken as proportional to the resource blocks."""
    throughput_bps = reports.throughput_bps * (work.resource_blocks / reports.resource_blocks)
    with np.errstate(over="ignore", divide="ignore"):  # too slow to say: cut off at NEVER_NS
        update_s = reports.data_samples * work.local_epochs / reports.compute_samples_per_s
        upload_s = 8 * work.model_size_bytes / throughput_bps
    return EstimatedTimes(round_to_ns(update_s), round_to_ns(upload_s))
