"""Timing side by side: the runs of all contenders are interleaved, so that noise meets all of them alike."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter


def median_seconds(contenders: Mapping[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median time of each contender over so many interleaved runs."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, contender in contenders.items():
            start = perf_counter()
            contender()
            seconds[name].append(perf_counter() - start)
    return {name: median(samples) for name, samples in seconds.items()}
