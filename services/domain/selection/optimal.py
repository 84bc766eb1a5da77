"""The largest set of clients that fits a round, computed exactly in polynomial time.

The paper treats Client Selection as a hard combinatorial problem and uses a greedy algorithm. Let M bound the
download times of the selected clients. Then the distribution takes at most M, and the rest is a scheduling
problem with one machine (the channel) and jobs with a release time (update), a length (upload) and a common
deadline. With time reversed, release times become due dates, and Moore-Hodgson finds the most jobs in
O(n log n).

Not every M has to be tried. A larger M admits more clients, a smaller M leaves more time. One run with the
largest M of a range and the time that its smallest M leaves is therefore an upper bound for the whole range.
Ranges are halved only while their bound is above the best set found.
"""

from dataclasses import dataclass
from heapq import heappop, heappush, heappushpop
from typing import ClassVar

import numpy as np

from services.domain.nanoseconds import cumulative_sums_ns
from services.domain.resources import EstimatedTimes, Positions
from services.domain.schedule import upload_ends_ns
from services.domain.selection.fedcs import greedy_order
from services.domain.selection.policy import Candidates, SelectionPolicy


def optimal_order(times: EstimatedTimes, available_ns: int) -> Positions:
    """The most clients that fit in this much time to distribute, update and upload; in upload order."""
    hopeful = np.flatnonzero(times.fit_alone(available_ns))
    limits_ns, limits = np.unique(times.download_ns[hopeful], return_inverse=True)
    jobs = _Jobs(times.of(hopeful), limits)
    best = greedy_order(times, available_ns)
    ranges = [(-count_bound(times, available_ns), 0, len(limits_ns) - 1)]
    while ranges and -ranges[0][0] > len(best):
        _, low, high = heappop(ranges)
        jobs_on_time = jobs.most_on_time(high, deadline_ns=available_ns - int(limits_ns[low]) - 1)
        if len(jobs_on_time) <= len(best):
            continue
        order = hopeful[jobs_on_time]
        if _fits(times.of(order), available_ns):  # always so in a range of one
            best = order
        else:
            middle = (low + high) // 2
            heappush(ranges, (-len(order), low, middle))
            heappush(ranges, (-len(order), middle + 1, high))
    return best


def count_bound(times: EstimatedTimes, available_ns: int) -> int:
    """How many clients would fit if updates took no time: never less than the optimum."""
    hopeful = times.fit_alone(available_ns)
    uploaded_ns = cumulative_sums_ns(np.sort(times.upload_ns[hopeful]), available_ns)
    downloads_ns = np.sort(times.download_ns[hopeful])[: len(uploaded_ns)]
    return int(np.searchsorted(uploaded_ns + downloads_ns, available_ns))


def _fits(selected: EstimatedTimes, available_ns: int) -> bool:
    return selected.distribution_ns() + int(upload_ends_ns(selected)[-1]) < available_ns


class _Jobs:
    """Candidates as jobs on the channel, each known by its rank in order of upload time."""

    def __init__(self, times: EstimatedTimes, limits: Positions) -> None:
        """``limits`` has the place of each candidate's download time among all download times."""
        self._by_upload = np.argsort(times.upload_ns, kind="stable")
        self._update_ns = times.update_ns
        self._upload_ns: list[int] = times.upload_ns[self._by_upload].tolist()
        ranked_update_ns = times.update_ns[self._by_upload]
        latest_first = np.argsort(-ranked_update_ns, kind="stable")
        self._latest_first: list[tuple[int, int, int]] = list(
            zip(
                latest_first.tolist(),
                limits[self._by_upload][latest_first].tolist(),
                ranked_update_ns[latest_first].tolist(),
                strict=True,
            )
        )

    def most_on_time(self, last_limit: int, deadline_ns: int) -> Positions:
        """Moore-Hodgson over the jobs up to a download time; the answer in order of update time."""
        upload_ns = self._upload_ns
        on_time: list[int] = []  # a heap of negative ranks: the longest upload first
        total_ns = 0
        for rank, limit, update_ns in self._latest_first:
            if limit > last_limit:
                continue
            total_ns += upload_ns[rank]
            if total_ns > deadline_ns - update_ns:
                total_ns -= upload_ns[-heappushpop(on_time, -rank)]
            else:
                heappush(on_time, -rank)
        positions = self._by_upload[-np.array(on_time, dtype=np.intp)]
        return positions[np.lexsort((positions, self._update_ns[positions]))]


@dataclass(frozen=True)
class Optimal(SelectionPolicy):
    """Takes the largest set of clients that fits."""

    summary: ClassVar[str] = "the most clients that fit, exactly"

    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """The optimum, in order of update time."""
        return optimal_order(candidates.times, available_ns)
