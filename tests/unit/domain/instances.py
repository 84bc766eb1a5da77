"""Random instances of Client Selection, and the slow but obvious ways to solve them."""

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
from hypothesis import strategies as st

from services.domain.resources import EstimatedTimes


def times_of(update_ns: Sequence[int], upload_ns: Sequence[int]) -> EstimatedTimes:
    return EstimatedTimes(np.array(update_ns, dtype=np.int64), np.array(upload_ns, dtype=np.int64))


@st.composite
def instances(draw: st.DrawFn, max_clients: int = 12) -> tuple[EstimatedTimes, int]:
    """Small numbers, so that ties are common; a deadline from hopeless to generous."""
    longest = draw(st.sampled_from([1, 3, 10, 1000]))
    clients = draw(st.integers(0, max_clients))
    durations = st.lists(st.integers(0, longest), min_size=clients, max_size=clients)
    times = times_of(draw(durations), draw(durations))
    return times, draw(st.integers(0, (clients + 3) * longest))


def random_instance(rng: np.random.Generator, max_clients: int) -> tuple[EstimatedTimes, int]:
    """One of many shapes: few or many different durations, short or long updates and uploads."""
    clients = int(rng.integers(0, max_clients + 1))
    longest_update, longest_upload = rng.choice([1, 2, 5, 20, 1000, 10**12], 2).tolist()
    times = EstimatedTimes(
        rng.integers(0, longest_update, clients, endpoint=True),
        rng.integers(0, longest_upload, clients, endpoint=True),
    )
    work = int(times.update_ns.max(initial=0) + 2 * times.upload_ns.sum())
    return times, int(rng.integers(0, work + 2))


def round_ns(times: EstimatedTimes, order: Sequence[int]) -> int:
    """Distribution and elapsed time of an upload order, straight from the definition."""
    elapsed = 0
    for client in order:
        elapsed = max(elapsed, int(times.update_ns[client])) + int(times.upload_ns[client])
    return elapsed + max((int(times.upload_ns[client]) for client in order), default=0)


def most_clients(times: EstimatedTimes, available_ns: int) -> int:
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
