"""Random instances of Client Selection, and the slow but obvious ways to solve them."""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
from hypothesis import strategies as st

from services.domain.resources import EstimatedTimes, Positions, ResourceReports
from services.domain.selection import Candidates, make_policy

KAPPAS = (0.1, 0.5, 1, 2, 4)
"""Download size divided by upload size."""


def times_of(
    update_ns: Sequence[int], upload_ns: Sequence[int], download_ns: Sequence[int] | None = None
) -> EstimatedTimes:
    """Downloads take as long as uploads, unless they are given."""
    uploads_ns = np.array(upload_ns, dtype=np.int64)
    downloads_ns = uploads_ns if download_ns is None else np.array(download_ns, dtype=np.int64)
    return EstimatedTimes(np.array(update_ns, dtype=np.int64), uploads_ns, downloads_ns)


def candidates_of(times: EstimatedTimes) -> Candidates:
    """Candidates with these times, and reports that nobody looks at."""
    ones = np.ones(len(times))
    return Candidates(times, ResourceReports(ones, ones, ones.astype(np.int64)))


def select(
    policy: str, times: EstimatedTimes, available_ns: int, rng: np.random.Generator | None = None
) -> Positions:
    """Whom a policy selects, in upload order."""
    rng = rng or np.random.default_rng(0)
    return make_policy(policy, {}).select(candidates_of(times), available_ns, rng)


@st.composite
def instances(draw: st.DrawFn, max_clients: int = 12) -> tuple[EstimatedTimes, int]:
    """Small numbers, so that ties are common; a deadline from hopeless to generous.

    Download times have nothing to do with upload times, or are the same.
    """
    longest = draw(st.sampled_from([1, 3, 10, 1000]))
    clients = draw(st.integers(0, max_clients))
    durations = st.lists(st.integers(0, longest), min_size=clients, max_size=clients)
    times = times_of(draw(durations), draw(durations), draw(st.none() | durations))
    return times, draw(st.integers(0, (clients + 3) * longest))


def random_instance(
    rng: np.random.Generator, max_clients: int, kappa: float = 1
) -> tuple[EstimatedTimes, int]:
    """One of many shapes: few or many different durations, short or long updates and uploads.

    Both transfer times follow from one throughput and are rounded once each, so that some clients have the
    same upload time and different download times, or the other way round.
    """
    clients = int(rng.integers(0, max_clients + 1))
    longest_update, longest_transfer = rng.choice([1, 2, 5, 20, 1000, 10**12], 2).tolist()
    exact = rng.random(clients) * longest_transfer
    uploads_ns = np.rint(exact).astype(np.int64)
    times = EstimatedTimes(
        rng.integers(0, longest_update, clients, endpoint=True),
        uploads_ns,
        uploads_ns if kappa == 1 else np.rint(kappa * exact).astype(np.int64),
    )
    work = int(times.update_ns.max(initial=0) + times.upload_ns.sum() + times.download_ns.sum())
    return times, int(rng.integers(0, work + 2))


def round_ns(times: EstimatedTimes, order: Sequence[int]) -> int:
    """Distribution and elapsed time of an upload order, straight from the definition."""
    elapsed = 0
    for client in order:
        elapsed = max(elapsed, int(times.update_ns[client])) + int(times.upload_ns[client])
    return elapsed + max((int(times.download_ns[client]) for client in order), default=0)


def max_clients(times: EstimatedTimes, available_ns: int) -> int:
    """Brute force over subsets, each in order of update time."""
    clients = sorted(range(len(times)), key=lambda client: int(times.update_ns[client]))
    for count in range(len(clients), 0, -1):
        if any(round_ns(times, subset) < available_ns for subset in combinations(clients, count)):
            return count
    return 0


def most_clients_in_any_order(times: EstimatedTimes, available_ns: int) -> int:
    """Brute force over every order of every subset."""
    for count in range(len(times), 0, -1):
        if any(round_ns(times, order) < available_ns for order in permutations(range(len(times)), count)):
            return count
    return 0
