"""The adaptive deadline: how long a round should be, given how much the clients' updates differ.

A round with m clients makes progress in proportion to 1 / (1 + B/m), where B is the gradient noise scale,
counted in clients (McCandlish et al., 2018). So the best deadline minimises total · (1 + B/clients).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.domain.nanoseconds import Nanoseconds, to_seconds
from services.domain.selection import Candidates, SelectionPolicy, policy_rng
from services.domain.selection.fedcs import FedCS

DRAWS = 8
"""So many draws of candidates are compared: from the draw at hand alone, one round in ten had one client."""
MAX_SELECTIONS = 256
"""So many deadlines are tried with a policy that has to select anew for each."""
MAX_POINTS = 100
"""Of the trade-off that is stored and shown."""


@dataclass(frozen=True)
class DeadlinePoint:
    """A deadline that was considered: how many clients it gives, and its cost; the best has 1."""

    deadline_s: float
    clients: float
    relative_cost: float


@dataclass(frozen=True)
class DeadlineChoice:
    """The deadline to select clients with, and what it was compared with."""

    deadline_ns: int
    points: tuple[DeadlinePoint, ...]
    """In order of the deadline, ``MAX_POINTS`` at most."""


@dataclass(frozen=True)
class DeadlineLimits:
    """What an adaptive deadline has to keep to."""

    overhead_ns: int
    """The time reserved for Client Selection and Aggregation."""
    longest_ns: int
    """Totals have to be strictly below."""
    min_clients: int = 1
    failed_ns: int = 0
    """What a round with fewer clients costs."""


def choose_deadline(
    draws: Sequence[Sequence[Candidates]],
    policy: SelectionPolicy,
    noise_scale: float,
    limits: DeadlineLimits,
    seed: int | Sequence[int],
) -> DeadlineChoice:
    """The best of the totals of greedy's prefixes; the longest if none gives enough clients.

    Each draw has the candidates of each cell: their clients add up, and the longest of their totals counts.
    A draw with too few clients counts as the failed round it would be: no clients, and what that costs.
    A deadline is a nanosecond more than the total that it comes from, because rounds end strictly before it.
    """
    deadlines_ns = _candidate_deadlines(draws, limits)
    if not policy.selects_prefixes:
        deadlines_ns = deadlines_ns[_thinned(len(deadlines_ns), MAX_SELECTIONS)]
    clients = np.zeros(len(deadlines_ns))
    totals_ns = np.zeros(len(deadlines_ns))
    min_clients = max(limits.min_clients, 1)
    for cells in draws:
        clients_of_draw = np.zeros(len(deadlines_ns), dtype=np.int64)
        totals_of_draw = np.full(len(deadlines_ns), limits.overhead_ns, dtype=np.int64)
        for candidates in cells:
            count, spent_ns = _by_deadline(policy, candidates, deadlines_ns - limits.overhead_ns, seed)
            clients_of_draw += count
            totals_of_draw = np.maximum(totals_of_draw, limits.overhead_ns + spent_ns)
        failed = clients_of_draw < min_clients
        clients += np.where(failed, 0, clients_of_draw)
        totals_ns += np.where(failed, limits.failed_ns, totals_of_draw)
    clients /= max(len(draws), 1)
    totals_ns /= max(len(draws), 1)
    usable = np.flatnonzero(clients >= min_clients)
    if not usable.size:
        return DeadlineChoice(limits.longest_ns, ())
    costs = totals_ns[usable] * (1 + noise_scale / clients[usable])
    best = int(costs.argmin())
    shown = sorted({*_thinned(len(usable), MAX_POINTS - 1), best})
    points = tuple(
        DeadlinePoint(
            to_seconds(int(deadlines_ns[usable[place]])),
            float(clients[usable[place]]),
            float(costs[place] / costs[best]) if costs[best] else 1.0,
        )
        for place in shown
    )
    return DeadlineChoice(int(deadlines_ns[usable[best]]), points)


def round_deadline_s(total_ns: int, slack: float, *, least_s: float, longest_s: float) -> float:
    """The deadline of a round with a schedule of this total: room for what takes longer than estimated."""
    room_s = max(to_seconds(total_ns) * (1 + slack), to_seconds(total_ns + 1))
    return min(max(room_s, least_s), longest_s)


def _candidate_deadlines(draws: Sequence[Sequence[Candidates]], limits: DeadlineLimits) -> Nanoseconds:
    """One for the total of each prefix of greedy's order, in any draw and cell, in order."""
    available_ns = limits.longest_ns - limits.overhead_ns
    totals = [np.empty(0, dtype=np.int64)]
    for cells in draws:
        totals += [FedCS().totals_ns(candidates, available_ns) for candidates in cells]
    return np.unique(np.concatenate(totals)) + limits.overhead_ns + 1


def _by_deadline(
    policy: SelectionPolicy, candidates: Candidates, available_ns: Nanoseconds, seed: int | Sequence[int]
) -> tuple[Nanoseconds, Nanoseconds]:
    """How many clients the policy selects with each of these times, and how long their schedules are."""
    if not len(candidates):
        return np.zeros_like(available_ns), np.zeros_like(available_ns)
    return policy.by_available(candidates, available_ns, lambda: policy_rng(seed))


def _thinned(count: int, most: int) -> list[int]:
    """So many places at the most, spread evenly."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, most).tolist()})
