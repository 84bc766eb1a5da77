"""The memory of the service while it is under load, by what it tells in its metrics."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client_sim import calls
from client_sim.load_latency import Measured, Operation

_SAMPLE_EVERY_S = 2.0
_WARM_UP_SHARE = 0.25
_MOST_WARM_UP_S = 30.0
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)
_MEGABYTE = 1e6


@dataclass(frozen=True)
class MemorySample:
    """The service's resident memory at a moment of the test."""

    at_s: float
    resident_mb: float


@dataclass(frozen=True)
class MemoryFigures:
    """How the memory went, after a time to warm up in which caches and pools fill."""

    first_mb: float
    last_mb: float
    most_mb: float
    slope_mb_per_min: float | None
    """By least squares; None where there are fewer than three samples."""
    samples: Sequence[MemorySample]
    """All of them, those of the warm-up too."""


async def sample_memory(measured: Measured, samples: list[MemorySample]) -> None:
    """Ask the service until the end; it may tell nothing of its memory, as on systems without /proc."""
    due_s = measured.begins_s
    while due_s <= measured.ends_s:
        await measured.wait_until(due_s)
        metrics = await measured.send(Operation.METRICS, calls.server_metrics())
        if metrics is not None and (found := _RESIDENT.search(metrics)):
            at_s = time.monotonic() - measured.begins_s
            samples.append(MemorySample(at_s, float(found[1]) / _MEGABYTE))
        due_s = max(due_s + _SAMPLE_EVERY_S, time.monotonic())


def memory_figures(samples: Sequence[MemorySample], duration_s: float) -> MemoryFigures | None:
    """What the samples of a test of this duration say; None where there are none after the warm-up."""
    warm_up_s = min(_WARM_UP_SHARE * duration_s, _MOST_WARM_UP_S)
    warm = [sample for sample in samples if sample.at_s >= warm_up_s]
    if not warm:
        return None
    minutes = np.array([sample.at_s for sample in warm]) / 60
    resident_mb = np.array([sample.resident_mb for sample in warm])
    slope = float(np.polyfit(minutes, resident_mb, 1)[0]) if len(warm) >= 3 else None
    return MemoryFigures(
        float(resident_mb[0]), float(resident_mb[-1]), float(resident_mb.max()), slope, list(samples)
    )
