"""The paper's greedy Client Selection (its Algorithm 3), in O(n log n) instead of O(n²).

Each step takes the candidate with the least cost: what it adds to the distribution, its upload, and the
wait for its update. With M the distribution time so far, Θ the elapsed time, u and t a candidate's upload
and update time::

    cost = max(u, M) - M  +  u  +  max(0, t - Θ)

Three facts make it fast, and none of them changes the answer:

1. The round grows by the cost, so the first least cost that does not fit ends the search.
2. A candidate whose update is done by Θ ("ready") is ordered by u alone; one still updating by u + t
   while u <= M ("near"), by 2u + t before that ("far"). M and Θ only grow, so a candidate moves one way
   through these three queues.
3. No cost is below ``max(u, 2u - M)``. So the fastest uploaders are looked at first, and slower ones only
   when the least cost found among the fast is not below theirs.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from services.domain.nanoseconds import NEVER_NS, Nanoseconds
from services.domain.resources import EstimatedTimes, Positions

_FIRST_LOOK = 1024
_WIDEN_BY = 4


def costs_ns(times: EstimatedTimes, distribution_ns: int, elapsed_ns: int) -> Nanoseconds:
    """What each candidate would add to a round that takes this long already."""
    longer_distribution = np.maximum(times.upload_ns - distribution_ns, 0)
    wait_for_update = np.maximum(times.update_ns - elapsed_ns, 0)
    return longer_distribution + times.upload_ns + wait_for_update


def greedy_order(times: EstimatedTimes, available_ns: int) -> Positions:
    """Select clients for a round with this much time to distribute, update and upload; in upload order.

    Ties go to the lowest position.
    """
    remaining = times.hopeful(available_ns)
    growing = _GrowingRound(available_ns)
    order = [np.empty(0, dtype=np.intp)]
    look = _FIRST_LOOK
    while len(remaining) and not growing.full:
        within, slowest_ns = _fastest_uploaders(times.upload_ns[remaining], look)
        admitted = within[growing.admit_from(times.of(remaining[within]), slowest_ns)]
        order.append(remaining[admitted])
        remaining = np.delete(remaining, admitted)
        if growing.undecided:
            admitted = growing.admit_least(times.of(remaining))
            order.append(remaining[admitted])
            remaining = np.delete(remaining, admitted)
        look *= _WIDEN_BY
    return np.concatenate(order)


def _fastest_uploaders(uploads_ns: Nanoseconds, count: int) -> tuple[Positions, int]:
    """The ``count`` fastest in order of position, and the time below which no other one uploads.

    Of equals the lowest positions are taken.
    """
    if count >= len(uploads_ns):
        return np.arange(len(uploads_ns)), NEVER_NS
    slowest_ns = int(np.partition(uploads_ns, count - 1)[count - 1])
    faster = np.flatnonzero(uploads_ns < slowest_ns)
    equal = np.flatnonzero(uploads_ns == slowest_ns)[: count - len(faster)]
    return np.sort(np.concatenate((faster, equal))), slowest_ns


@dataclass
class _GrowingRound:
    """The clients admitted so far, and the time they take."""

    available_ns: int
    distribution_ns: int = 0
    elapsed_ns: int = 0
    full: bool = False
    undecided: bool = False

    def admit_from(self, times: EstimatedTimes, slowest_ns: int) -> Positions:
        """Admit in order of cost, as far as nobody uploading in ``slowest_ns`` or more could come first."""
        if times.update_ns.max() <= self.elapsed_ns:
            return self._admit_ready(np.argsort(times.upload_ns, kind="stable"), times)
        queues = _Queues(times)
        queues.move(self.distribution_ns, self.elapsed_ns)
        admitted: list[int] = []
        while queues.updating:
            cost, client = queues.least(self.distribution_ns, self.elapsed_ns)
            cost_of_slower = max(slowest_ns, 2 * slowest_ns - self.distribution_ns)
            total = self.distribution_ns + self.elapsed_ns + min(cost, cost_of_slower)
            self.full = total >= self.available_ns
            # Of equal costs that of a ready client comes first: it has the lower position.
            self.undecided = not self.full and (
                cost > cost_of_slower or (cost == cost_of_slower and not queues.is_ready(client))
            )
            if self.full or self.undecided:
                return np.array(admitted, dtype=np.intp)
            self._add(*queues.take(client))
            admitted.append(client)
            queues.move(self.distribution_ns, self.elapsed_ns)
        ready = queues.by_upload[np.sort(np.array(queues.ready, dtype=np.intp))]
        return np.append(np.array(admitted, dtype=np.intp), self._admit_ready(ready, times))

    def admit_least(self, times: EstimatedTimes) -> Positions:
        """Admit the one with the least cost of all, if it fits."""
        costs = costs_ns(times, self.distribution_ns, self.elapsed_ns)
        client = int(costs.argmin())
        self.full = self.distribution_ns + self.elapsed_ns + int(costs[client]) >= self.available_ns
        if self.full:
            return np.empty(0, dtype=np.intp)
        self._add(int(times.upload_ns[client]), int(times.update_ns[client]))
        self.undecided = False
        return np.array([client])

    def _add(self, upload_ns: int, update_ns: int) -> None:
        self.elapsed_ns = max(self.elapsed_ns, update_ns) + upload_ns
        self.distribution_ns = max(self.distribution_ns, upload_ns)

    def _admit_ready(self, ready: Positions, times: EstimatedTimes) -> Positions:
        """Admit clients that only have to upload, given in order of upload time, while they fit."""
        uploads_ns = times.upload_ns[ready]
        # The exact sums must not overflow: floats tell how many of them are worth adding up.
        enough = np.searchsorted(np.cumsum(uploads_ns, dtype=np.float64), 2.0 * self.available_ns)
        uploads_ns = uploads_ns[: enough + 1]
        ends_ns = self.elapsed_ns + np.cumsum(uploads_ns)
        totals_ns = np.maximum(uploads_ns, self.distribution_ns) + ends_ns
        fitting = int(np.searchsorted(totals_ns, self.available_ns))
        self.full = fitting < len(ready)
        if fitting:
            self.elapsed_ns = int(ends_ns[fitting - 1])
            self.distribution_ns = max(self.distribution_ns, int(uploads_ns[fitting - 1]))
        return ready[:fitting]


class _Queues:
    """Candidates in the three orders of fact 2, numbered by their position in ``times``.

    Heaps hold ranks in their order. One that has moved on, or was taken, is dropped from its old queue when
    it comes to the front there.
    """

    def __init__(self, times: EstimatedTimes) -> None:
        self._upload_ns: list[int] = times.upload_ns.tolist()
        self._update_ns: list[int] = times.update_ns.tolist()
        self.by_upload = np.argsort(times.upload_ns, kind="stable")
        by_sum = np.argsort(times.upload_ns + times.update_ns, kind="stable")
        self._by_upload = self.by_upload.tolist()
        self._by_sum = by_sum.tolist()
        self._upload_rank = _ranks(self.by_upload)
        self._sum_rank = _ranks(by_sum)
        self.ready: list[int] = []
        self._near: list[int] = []
        self._far = np.argsort(2 * times.upload_ns + times.update_ns, kind="stable")[::-1].tolist()
        self.updating = np.argsort(times.update_ns)[::-1].tolist()
        self._not_near = self.by_upload[::-1].tolist()
        self._taken: set[int] = set()

    def move(self, distribution_ns: int, elapsed_ns: int) -> None:
        """Let every candidate move on to the queue where it belongs by now."""
        upload_ns, update_ns = self._upload_ns, self._update_ns
        updating, near, far, not_near = self.updating, self._near, self._far, self._not_near
        while updating and update_ns[updating[-1]] <= elapsed_ns:
            client = updating.pop()
            if client not in self._taken:
                heappush(self.ready, self._upload_rank[client])
        while not_near and upload_ns[not_near[-1]] <= distribution_ns:
            client = not_near.pop()
            if update_ns[client] > elapsed_ns:
                heappush(near, self._sum_rank[client])
        while near and update_ns[self._by_sum[near[0]]] <= elapsed_ns:
            heappop(near)
        while far and (update_ns[far[-1]] <= elapsed_ns or upload_ns[far[-1]] <= distribution_ns):
            far.pop()

    def least(self, distribution_ns: int, elapsed_ns: int) -> tuple[int, int]:
        """The least cost of all, and the candidate that has it."""
        costs: list[tuple[int, int]] = []
        if self.ready:
            client = self._by_upload[self.ready[0]]
            upload_ns = self._upload_ns[client]
            costs.append((max(upload_ns, 2 * upload_ns - distribution_ns), client))
        if self._near:
            client = self._by_sum[self._near[0]]
            sum_ns = self._upload_ns[client] + self._update_ns[client]
            costs.append((sum_ns - elapsed_ns, client))
        if self._far:
            client = self._far[-1]
            sum_ns = 2 * self._upload_ns[client] + self._update_ns[client]
            costs.append((sum_ns - distribution_ns - elapsed_ns, client))
        return min(costs)

    def is_ready(self, client: int) -> bool:
        """Whether a candidate that is the least has its update done."""
        return bool(self.ready) and self._by_upload[self.ready[0]] == client

    def take(self, client: int) -> tuple[int, int]:
        """Remove a candidate that was the least; its upload and update time."""
        if self.is_ready(client):
            heappop(self.ready)
        else:
            self._taken.add(client)
        return self._upload_ns[client], self._update_ns[client]


def _ranks(order: Positions) -> list[int]:
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    as_list: list[int] = ranks.tolist()
    return as_list
