"""FedCS: the paper's greedy Client Selection (its Algorithm 3), in about the time of a sort instead of O(n²).

Each step takes the candidate with the least cost: what it adds to the distribution, its upload, and the
wait for its update. With M the distribution time so far, Θ the elapsed time, and u, d and t the candidate's
upload, download and update time::

    cost = max(d, M) - M  +  u  +  max(0, t - Θ)

Four facts make it fast without changing the result:

1. The round grows by the cost, so the search ends when the least cost no longer fits.
2. Candidates whose update is done by Θ ("ready") are ordered by u if their d is at most M, else by u + d.
3. A candidate that is still updating costs at least t - Θ. So the search in order of t stops at the least
   cost found. That is cheap: Θ grows by at least half of the least cost, so candidates that are examined and
   not taken are at most half as far away the next time.
4. No cost is below ``u + max(0, d - M)``. So the fastest uploaders are examined first, and slower ones only
   when the least cost among the fast ones is not below theirs.

Download and upload times come from the same throughput, so they have the same order except for rounding. The
result is exact for any download times, but slower where the orders differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from services.domain.nanoseconds import NEVER_NS, Nanoseconds, cumulative_sums_ns
from services.domain.resources import EstimatedTimes, Positions
from services.domain.schedule import upload_ends_ns
from services.domain.selection.policy import Candidates, SelectionPolicy

_FIRST_LOOK = 256
_WIDEN_BY = 2


def costs_ns(times: EstimatedTimes, distribution_ns: int, elapsed_ns: int) -> Nanoseconds:
    """What each candidate would add to a round that takes this long already."""
    longer_distribution = np.maximum(times.download_ns - distribution_ns, 0)
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
    uploads_ns = np.where(hopeful, times.upload_ns, NEVER_NS)  # NEVER_NS: not to be selected (any more)
    last_update_ns = int(times.update_ns.max(where=hopeful, initial=0))
    look = _FIRST_LOOK
    while left and not growing.full:
        if growing.elapsed_ns >= last_update_ns:  # all are ready: look at as many as could still be admitted
            look = max(look, growing.room_for_uploads(at_least_ns=int(uploads_ns.min())))
        looked_at, others = _fastest_uploaders(times, uploads_ns, look, left)
        admitted = looked_at[growing.admit_from(times.of(looked_at), others)]
        if growing.undecided:
            uploads_ns[admitted] = NEVER_NS
            everyone = np.flatnonzero(uploads_ns < NEVER_NS)
            admitted = np.append(admitted, everyone[growing.admit_least(times.of(everyone))])
        order.append(admitted)
        uploads_ns[admitted] = NEVER_NS
        left -= len(admitted)
        look *= _WIDEN_BY
    return np.concatenate(order)


class _Others:
    """Candidates that are not looked at."""

    def __init__(self, upload_ns: int, find_download_ns: Callable[[], int]) -> None:
        self.upload_ns = upload_ns
        """None of them uploads in less; ``NEVER_NS`` if there are none."""
        self._find_download_ns = find_download_ns

    @cached_property
    def download_ns(self) -> int:
        """None of them downloads in less. Found out on demand: once M is large, it seldom matters."""
        return self._find_download_ns()

    def least_cost(self, distribution_ns: int) -> int:
        """None of them costs less."""
        return self.upload_ns + max(self.download_ns - distribution_ns, 0)


def _fastest_uploaders(
    times: EstimatedTimes, uploads_ns: Nanoseconds, count: int, left: int
) -> tuple[Positions, _Others]:
    """The ``count`` fastest uploaders in order of position, and what is known of the others.

    Of equals the lowest positions are taken. ``uploads_ns`` is ``NEVER_NS`` for those not to be selected.
    """
    if count >= left:
        return np.flatnonzero(uploads_ns < NEVER_NS), _Others(NEVER_NS, lambda: NEVER_NS)
    slowest_ns = int(np.partition(uploads_ns, count - 1)[count - 1])
    fastest = np.flatnonzero(uploads_ns <= slowest_ns)
    slowest = np.flatnonzero(uploads_ns[fastest] == slowest_ns)
    too_many = len(fastest) - count
    fastest = np.delete(fastest, slowest[len(slowest) - too_many :])

    def least_download_ns() -> int:
        if times.download_ns is times.upload_ns:
            return slowest_ns
        others = uploads_ns < NEVER_NS
        others[fastest] = False
        return int(np.where(others, times.download_ns, NEVER_NS).min())

    return fastest, _Others(slowest_ns, least_download_ns)


@dataclass
class _GrowingRound:
    """The time taken by the clients admitted so far."""

    available_ns: int
    distribution_ns: int = 0
    elapsed_ns: int = 0
    full: bool = False
    """Nobody fits any more."""
    undecided: bool = False
    """Some other candidate might cost less."""

    def admit_from(self, times: EstimatedTimes, others: _Others) -> Positions:
        """Admit in order of cost, as far as none of the others could come first."""
        if times.update_ns.max() <= self.elapsed_ns:
            return self._admit_ready(times, others)
        waiting = _Waiting(times)
        waiting.update(self.distribution_ns, self.elapsed_ns)
        admitted: list[int] = []
        while not waiting.all_ready():
            cost_ns, client = waiting.least(self.distribution_ns, self.elapsed_ns)
            others_ns = others.upload_ns
            if cost_ns >= others_ns:
                others_ns = others.least_cost(self.distribution_ns)
            self.full = self._would_end_at(min(cost_ns, others_ns)) >= self.available_ns
            # Of equal costs a ready client comes first if it uploads as fast as the others: it has the lower
            # position.
            comes_first = cost_ns < others_ns or (
                cost_ns == others_ns
                and waiting.upload_ns[client] == others.upload_ns
                and waiting.update_ns[client] <= self.elapsed_ns
            )
            self.undecided = not self.full and not comes_first
            if self.full or self.undecided:
                return np.array(admitted, dtype=np.intp)
            admitted.append(client)
            waiting.take(client)
            self._add(waiting.update_ns[client], waiting.upload_ns[client], waiting.download_ns[client])
            waiting.update(self.distribution_ns, self.elapsed_ns)
        ready = waiting.ready()
        return np.append(np.array(admitted, dtype=np.intp), ready[self._admit_ready(times.of(ready), others)])

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
        self._add(*(int(column[client]) for column in (times.update_ns, times.upload_ns, times.download_ns)))
        return np.array([client])

    def _admit_ready(self, times: EstimatedTimes, others: _Others) -> Positions:
        """Admit clients that only have to upload, while they fit and surely come first."""
        order, distributions_ns, sure = _by_upload(times, self.distribution_ns)
        uploads_ns = times.upload_ns[order]
        if others.upload_ns < NEVER_NS and sure and distributions_ns[sure - 1] > self.distribution_ns:
            sure = min(sure, self._count_before(others, uploads_ns, distributions_ns))
        ends_ns = self.elapsed_ns + cumulative_sums_ns(uploads_ns[:sure], self.available_ns)
        totals_ns = distributions_ns[: len(ends_ns)] + ends_ns
        fitting = int(totals_ns.searchsorted(self.available_ns))
        self.full = fitting < sure
        self.undecided = not self.full and sure < len(order)
        if fitting:
            self.elapsed_ns = int(ends_ns[fitting - 1])
            self.distribution_ns = int(distributions_ns[fitting - 1])
        return order[:fitting]

    def _count_before(self, others: _Others, uploads_ns: Nanoseconds, distributions_ns: Nanoseconds) -> int:
        """How many ready clients, admitted in this order, come before the others."""
        before_ns = np.append(self.distribution_ns, distributions_ns[:-1])
        added_ns = uploads_ns + distributions_ns
        others_ns = others.upload_ns + np.maximum(others.download_ns, before_ns)
        after = (added_ns > others_ns) | ((added_ns == others_ns) & (uploads_ns < others.upload_ns))
        return _first_true(after)

    def _would_end_at(self, cost_ns: int) -> int:
        return self.distribution_ns + self.elapsed_ns + cost_ns

    def _add(self, update_ns: int, upload_ns: int, download_ns: int) -> None:
        self.elapsed_ns = max(self.elapsed_ns, update_ns) + upload_ns
        self.distribution_ns = max(self.distribution_ns, download_ns)


def _by_upload(times: EstimatedTimes, distribution_ns: int) -> tuple[Positions, Nanoseconds, int]:
    """Ready clients by upload time, and the distribution time with each; of equal uploads by that.

    The number says how many of them, from the front, cost less than all that follow.
    """
    order = times.upload_ns.argsort(kind="stable")
    distributions_ns = np.maximum(times.download_ns[order], distribution_ns)
    if (distributions_ns[1:] >= distributions_ns[:-1]).all():
        return order, distributions_ns, len(order)
    order = np.lexsort((np.maximum(times.download_ns, distribution_ns), times.upload_ns))
    distributions_ns = np.maximum(times.download_ns[order], distribution_ns)
    least_to_follow_ns = np.minimum.accumulate(distributions_ns[::-1])[::-1]
    return order, distributions_ns, _first_true(distributions_ns > least_to_follow_ns)


def _first_true(values: npt.NDArray[np.bool_]) -> int:
    """Where the first true value is; the length if there is none."""
    return int(values.argmax()) if values.any() else len(values)


class _Waiting:
    """Candidates not admitted yet, known by their position in ``times``: some ready, some updating.

    The ready ones are in two heaps: those whose download takes no longer than the distribution, by upload
    time; the others by upload and download time. Some of the latter become of the former kind when the
    distribution grows. Their key is then too low, never too high, so it is enough to move them when they come
    to the front.
    """

    def __init__(self, times: EstimatedTimes) -> None:
        self.update_ns: list[int] = times.update_ns.tolist()
        self.upload_ns: list[int] = times.upload_ns.tolist()
        self.download_ns: list[int] = times.download_ns.tolist()
        self._by_update: list[int] = np.argsort(times.update_ns).tolist()
        self._updated = 0  # so many of them, from the front of that order
        self._near: list[tuple[int, int]] = []  # a heap of upload times and clients
        self._far: list[tuple[int, int]] = []  # a heap of upload plus download times and clients
        self._taken_early: set[int] = set()

    def all_ready(self) -> bool:
        """Whether every update is done."""
        return self._updated == len(self._by_update)

    def update(self, distribution_ns: int, elapsed_ns: int) -> None:
        """Those whose update is done by now become ready."""
        by_update, update_ns = self._by_update, self.update_ns
        upload_ns, download_ns = self.upload_ns, self.download_ns
        near, far = self._near, self._far
        while self._updated < len(by_update) and update_ns[by_update[self._updated]] <= elapsed_ns:
            client = by_update[self._updated]
            self._updated += 1
            if client in self._taken_early:
                continue
            if download_ns[client] <= distribution_ns:
                heappush(near, (upload_ns[client], client))
            else:
                heappush(far, (upload_ns[client] + download_ns[client], client))
        while far and download_ns[client := far[0][1]] <= distribution_ns:
            heappop(far)
            heappush(near, (upload_ns[client], client))

    def least(self, distribution_ns: int, elapsed_ns: int) -> tuple[int, int]:
        """The least cost, and who has it; not to be asked when all are ready."""
        least = self._near[0] if self._near else (NEVER_NS, -1)
        if self._far:
            key_ns, client = self._far[0]
            least = min(least, (key_ns - distribution_ns, client))
        upload_ns, download_ns = self.upload_ns, self.download_ns
        for number in range(self._updated, len(self._by_update)):
            client = self._by_update[number]
            wait_ns = self.update_ns[client] - elapsed_ns
            if wait_ns > least[0]:
                break
            longer_ns = max(download_ns[client] - distribution_ns, 0)
            least = min(least, (longer_ns + upload_ns[client] + wait_ns, client))
        return least

    def take(self, client: int) -> None:
        """Remove the one with the least cost."""
        if self._near and self._near[0][1] == client:
            heappop(self._near)
        elif self._far and self._far[0][1] == client:
            heappop(self._far)
        else:
            self._taken_early.add(client)

    def ready(self) -> Positions:
        """The ready ones in order of position."""
        return np.sort(np.array([client for _, client in self._near + self._far], dtype=np.intp))


@dataclass(frozen=True)
class FedCS(SelectionPolicy):
    """Takes the client that prolongs the round least, as long as one fits."""

    summary: ClassVar[str] = "greedy, the paper's rule"
    uses_cost: ClassVar[bool] = True
    selects_prefixes: ClassVar[bool] = True

    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """The greedy order."""
        return greedy_order(candidates.times, available_ns)

    def totals_ns(self, candidates: Candidates, available_ns: int) -> Nanoseconds:
        """How long the round takes with the first, the first two, and so on of those it selects."""
        selected = candidates.times.of(greedy_order(candidates.times, available_ns))
        return np.maximum.accumulate(selected.download_ns) + upload_ends_ns(selected)

    def by_available(
        self,
        candidates: Candidates,
        available_ns: Nanoseconds,
        rng: Callable[[], np.random.Generator],
    ) -> tuple[Nanoseconds, Nanoseconds]:
        """The same from one selection, with the most time."""
        totals_ns = self.totals_ns(candidates, int(available_ns.max(initial=0)))
        counts = totals_ns.searchsorted(available_ns)
        return counts, np.concatenate(([0], totals_ns))[counts]
