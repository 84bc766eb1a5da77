"""The largest set of clients that fits a round, exactly and in polynomial time.

The paper takes Client Selection for a hard combinatorial problem and settles for greed. It is not that hard.
Let M bound the upload times of the selected: the distribution takes at most M, and what remains is one
machine (the channel) and jobs with a release time (update), a length (upload) and one common deadline.
Seen backwards in time the release times are due dates, and Moore-Hodgson finds the most jobs in O(n log n).

Not every M need be tried. A larger M lets more clients in, a smaller M leaves more time; so one run with the
largest M of a range and the time that its smallest M leaves bounds the whole range from above. Ranges are
halved only while their bound is above the best set found.
"""

from heapq import heappop, heappush, heappushpop

import numpy as np

from services.domain.greedy import greedy_order
from services.domain.nanoseconds import sums_ns
from services.domain.resources import EstimatedTimes, Positions
from services.domain.schedule import upload_ends_ns


def optimal_order(times: EstimatedTimes, available_ns: int) -> Positions:
    """The most clients that fit in this much time to distribute, update and upload; in upload order."""
    hopeful = np.flatnonzero(times.fit_alone(available_ns))
    jobs = _Jobs(times.of(hopeful))
    limits_ns, last_within = np.unique(times.upload_ns[hopeful], return_counts=True)
    last_within = np.cumsum(last_within) - 1
    best = greedy_order(times, available_ns)
    ranges = [(-count_bound(times, available_ns), 0, len(limits_ns) - 1)]
    while ranges and -ranges[0][0] > len(best):
        _, low, high = heappop(ranges)
        jobs_on_time = jobs.most_on_time(
            last_rank=int(last_within[high]), deadline_ns=available_ns - int(limits_ns[low]) - 1
        )
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
    uploads_ns = np.sort(times.upload_ns[times.fit_alone(available_ns)])
    uploaded_ns = sums_ns(uploads_ns, available_ns)
    return int(np.searchsorted(uploaded_ns + uploads_ns[: len(uploaded_ns)], available_ns))


def _fits(selected: EstimatedTimes, available_ns: int) -> bool:
    return selected.distribution_ns() + int(upload_ends_ns(selected)[-1]) < available_ns


class _Jobs:
    """Candidates as jobs on the channel, each known by its rank in order of upload time."""

    def __init__(self, times: EstimatedTimes) -> None:
        self._by_upload = np.argsort(times.upload_ns, kind="stable")
        self._update_ns = times.update_ns
        self._upload_ns: list[int] = times.upload_ns[self._by_upload].tolist()
        ranked_update_ns = times.update_ns[self._by_upload]
        latest_first = np.argsort(-ranked_update_ns, kind="stable")
        self._latest_first: list[tuple[int, int]] = list(
            zip(latest_first.tolist(), ranked_update_ns[latest_first].tolist(), strict=True)
        )

    def most_on_time(self, last_rank: int, deadline_ns: int) -> Positions:
        """Moore-Hodgson over the jobs up to a rank; the answer in order of update time."""
        upload_ns = self._upload_ns
        on_time: list[int] = []  # a heap of negative ranks: the longest upload first
        total_ns = 0
        for rank, update_ns in self._latest_first:
            if rank > last_rank:
                continue
            total_ns += upload_ns[rank]
            if total_ns > deadline_ns - update_ns:
                total_ns -= upload_ns[-heappushpop(on_time, -rank)]
            else:
                heappush(on_time, -rank)
        positions = self._by_upload[-np.array(on_time, dtype=np.intp)]
        return positions[np.lexsort((positions, self._update_ns[positions]))]
