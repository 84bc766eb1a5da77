"""The paper's greedy Client Selection (its Algorithm 3), in about the time of a sort instead of O(n²).

Each step takes the candidate with the least cost: what it adds to the distribution, its upload, and the
wait for its update. With M the distribution time so far, Θ the elapsed time, u and t a candidate's upload
and update time::

    cost = max(u, M) - M  +  u  +  max(0, t - Θ)

Four facts make it fast, and none of them changes the answer:

1. The round grows by the cost, so the first least cost that does not fit ends the search.
2. Candidates whose update is done by Θ ("ready") are ordered by u alone.
3. One still updating costs at least t - Θ. So in order of t nobody has to be looked at beyond the least cost
   found. That is little: Θ grows by at least half of the least cost, so who is looked at in vain is at most
   half as far away the next time.
4. No cost is below ``max(u, 2u - M)``. So the fastest uploaders are looked at first, and slower ones only
   when the least cost found among the fast is not below theirs.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from services.domain.nanoseconds import NEVER_NS, Nanoseconds, sums_ns
from services.domain.resources import EstimatedTimes, Positions

_FIRST_LOOK = 256
_WIDEN_BY = 2


def costs_ns(times: EstimatedTimes, distribution_ns: int, elapsed_ns: int) -> Nanoseconds:
    """What each candidate would add to a round that takes this long already."""
    longer_distribution = np.maximum(times.upload_ns - distribution_ns, 0)
    wait_for_update = np.maximum(times.update_ns - elapsed_ns, 0)
    return longer_distribution + times.upload_ns + wait_for_update


def greedy_order(times: EstimatedTimes, available_ns: int) -> Positions:
    """Select clients for a round with this much time to distribute, update and upload; in upload order.

    Ties go to the lowest position.
    """
    growing = _GrowingRound(available_ns)
    order = [np.empty(0, dtype=np.intp)]
    hopeful = times.fit_alone(available_ns)
    left = int(np.count_nonzero(hopeful))
    uploads_ns = np.where(hopeful, times.upload_ns, NEVER_NS)  # who is out of the question never uploads
    last_update_ns = int(times.update_ns.max(where=hopeful, initial=0))
    look = _FIRST_LOOK
    while left and not growing.full:
        if growing.elapsed_ns >= last_update_ns:  # all are ready: look at as many as could still be admitted
            look = max(look, growing.room_for_uploads(at_least_ns=int(uploads_ns.min())))
        looked_at, slowest_ns = _fastest_uploaders(uploads_ns, look, left)
        admitted = looked_at[growing.admit_from(times.of(looked_at), slowest_ns)]
        if growing.undecided:
            uploads_ns[admitted] = NEVER_NS
            everyone = np.flatnonzero(uploads_ns < NEVER_NS)
            admitted = np.append(admitted, everyone[growing.admit_least(times.of(everyone))])
        order.append(admitted)
        uploads_ns[admitted] = NEVER_NS
        left -= len(admitted)
        look *= _WIDEN_BY
    return np.concatenate(order)


def _fastest_uploaders(uploads_ns: Nanoseconds, count: int, left: int) -> tuple[Positions, int]:
    """The ``count`` fastest in order of position, and the time below which no other one uploads.

    Of equals the lowest positions are taken.
    """
    if count >= left:
        return np.flatnonzero(uploads_ns < NEVER_NS), NEVER_NS
    slowest_ns = int(np.partition(uploads_ns, count - 1)[count - 1])
    fastest = np.flatnonzero(uploads_ns <= slowest_ns)
    slowest = np.flatnonzero(uploads_ns[fastest] == slowest_ns)
    too_many = len(fastest) - count
    return np.delete(fastest, slowest[len(slowest) - too_many :]), slowest_ns


@dataclass
class _GrowingRound:
    """The time taken by the clients admitted so far."""

    available_ns: int
    distribution_ns: int = 0
    elapsed_ns: int = 0
    full: bool = False
    """Nobody fits any more."""
    undecided: bool = False
    """Someone who was not looked at might cost less."""

    def admit_from(self, times: EstimatedTimes, slowest_ns: int) -> Positions:
        """Admit in order of cost, as far as nobody who uploads in ``slowest_ns`` or more could come first."""
        if times.update_ns.max() <= self.elapsed_ns:
            by_upload = np.argsort(times.upload_ns, kind="stable")
            return self._admit_ready(by_upload, times.upload_ns[by_upload])
        waiting = _Waiting(times)
        waiting.update(self.elapsed_ns)
        admitted: list[int] = []
        while not waiting.all_ready():
            cost_ns, client = waiting.least(self.distribution_ns, self.elapsed_ns)
            slower_ns = max(slowest_ns, 2 * slowest_ns - self.distribution_ns)
            self.full = self._would_end_at(min(cost_ns, slower_ns)) >= self.available_ns
            # Of equal costs a ready client comes first: among equal uploads it has the lower position.
            self.undecided = not self.full and (
                cost_ns > slower_ns or (cost_ns == slower_ns and not waiting.is_ready(client))
            )
            if self.full or self.undecided:
                return np.array(admitted, dtype=np.intp)
            admitted.append(client)
            self._add(*waiting.take(client))
            waiting.update(self.elapsed_ns)
        ready = waiting.ready_by_upload()
        return np.append(np.array(admitted, dtype=np.intp), self._admit_ready(ready, times.upload_ns[ready]))

    def room_for_uploads(self, at_least_ns: int) -> int:
        """How many uploads could still be admitted at the most, if none is shorter than this."""
        return (self.available_ns - self._would_end_at(0)) // max(at_least_ns, 1) + 1

    def admit_least(self, times: EstimatedTimes) -> Positions:
        """Admit the one with the least cost of all, if it fits."""
        costs = costs_ns(times, self.distribution_ns, self.elapsed_ns)
        client = int(costs.argmin())
        self.undecided = False
        self.full = self._would_end_at(int(costs[client])) >= self.available_ns
        if self.full:
            return np.empty(0, dtype=np.intp)
        self._add(int(times.upload_ns[client]), int(times.update_ns[client]))
        return np.array([client])

    def _admit_ready(self, ready: Positions, uploads_ns: Nanoseconds) -> Positions:
        """Admit clients that only have to upload, given in order of upload time, while they fit."""
        ends_ns = self.elapsed_ns + sums_ns(uploads_ns, self.available_ns)
        totals_ns = np.maximum(uploads_ns[: len(ends_ns)], self.distribution_ns) + ends_ns
        fitting = int(np.searchsorted(totals_ns, self.available_ns))
        self.full = fitting < len(ready)
        if fitting:
            self.elapsed_ns = int(ends_ns[fitting - 1])
            self.distribution_ns = max(self.distribution_ns, int(uploads_ns[fitting - 1]))
        return ready[:fitting]

    def _would_end_at(self, cost_ns: int) -> int:
        return self.distribution_ns + self.elapsed_ns + cost_ns

    def _add(self, upload_ns: int, update_ns: int) -> None:
        self.elapsed_ns = max(self.elapsed_ns, update_ns) + upload_ns
        self.distribution_ns = max(self.distribution_ns, upload_ns)


class _Waiting:
    """Candidates not admitted yet, known by their position in ``times``: some ready, some updating."""

    def __init__(self, times: EstimatedTimes) -> None:
        self._by_upload = np.argsort(times.upload_ns, kind="stable")
        upload_rank = np.empty_like(self._by_upload)
        upload_rank[self._by_upload] = np.arange(len(times))
        self._upload_rank: list[int] = upload_rank.tolist()
        self._upload_ns: list[int] = times.upload_ns.tolist()
        self._update_ns: list[int] = times.update_ns.tolist()
        self._by_update: list[int] = np.argsort(times.update_ns).tolist()
        self._updated = 0  # so many of them, from the front of that order
        self._ready: list[int] = []  # a heap of ranks by upload time
        self._taken_early: set[int] = set()

    def all_ready(self) -> bool:
        """Whether every update is done."""
        return self._updated == len(self._by_update)

    def update(self, elapsed_ns: int) -> None:
        """Those whose update is done by now become ready."""
        by_update, update_ns = self._by_update, self._update_ns
        while self._updated < len(by_update) and update_ns[by_update[self._updated]] <= elapsed_ns:
            client = by_update[self._updated]
            self._updated += 1
            if client not in self._taken_early:
                heappush(self._ready, self._upload_rank[client])

    def least(self, distribution_ns: int, elapsed_ns: int) -> tuple[int, int]:
        """The least cost, and who has it; not to be asked when all are ready."""
        least = (NEVER_NS, -1)
        if self._ready:
            client = int(self._by_upload[self._ready[0]])
            upload_ns = self._upload_ns[client]
            least = (max(upload_ns, 2 * upload_ns - distribution_ns), client)
        for number in range(self._updated, len(self._by_update)):
            client = self._by_update[number]
            wait_ns = self._update_ns[client] - elapsed_ns
            if wait_ns > least[0]:
                break
            upload_ns = self._upload_ns[client]
            least = min(least, (max(upload_ns, 2 * upload_ns - distribution_ns) + wait_ns, client))
        return least

    def is_ready(self, client: int) -> bool:
        """Whether the one with the least cost has its update done."""
        return bool(self._ready) and self._by_upload[self._ready[0]] == client

    def take(self, client: int) -> tuple[int, int]:
        """Remove the one with the least cost; its upload and update time."""
        if self.is_ready(client):
            heappop(self._ready)
        else:
            self._taken_early.add(client)
        return self._upload_ns[client], self._update_ns[client]

    def ready_by_upload(self) -> Positions:
        """The ready ones in order of upload time."""
        return self._by_upload[np.sort(np.array(self._ready, dtype=np.intp))]
