import numpy as np
from hypothesis import given, settings

from services.domain.greedy import greedy_order
from services.domain.nanoseconds import NEVER_NS
from services.domain.optimum import count_bound, optimal_order
from services.domain.resources import EstimatedTimes
from tests.unit.domain.instances import (
    instances,
    most_clients,
    most_clients_in_any_order,
    random_instance,
    round_ns,
    times_of,
)


def test_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(3000):
        times, available_ns = random_instance(rng, max_clients=9)
        order = optimal_order(times, available_ns).tolist()
        assert len(order) == len(set(order)) == most_clients(times, available_ns)
        assert not order or round_ns(times, order) < available_ns


@settings(max_examples=500, deadline=None)
@given(instances(max_clients=9))
def test_equals_brute_force_with_many_ties(instance: tuple[EstimatedTimes, int]) -> None:
    times, available_ns = instance
    assert len(optimal_order(times, available_ns)) == most_clients(times, available_ns)


def test_no_order_is_better_than_that_of_update_times() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        times, available_ns = random_instance(rng, max_clients=6)
        assert most_clients(times, available_ns) == most_clients_in_any_order(times, available_ns)


def test_beats_greed_where_greed_takes_a_slow_radio_first() -> None:
    # Greed begins with the client that is done first, whose slow radio then delays the distribution to all.
    times = times_of([0, 9, 9, 9], [6, 2, 2, 2])
    assert len(greedy_order(times, 18)) == 2
    assert sorted(optimal_order(times, 18).tolist()) == [1, 2, 3]


def test_bound_is_never_below_the_optimum_and_met_without_updates() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        times, available_ns = random_instance(rng, max_clients=12)
        assert count_bound(times, available_ns) >= len(optimal_order(times, available_ns))
        instant = EstimatedTimes(np.zeros_like(times.update_ns), times.upload_ns)
        assert count_bound(instant, available_ns) == len(optimal_order(instant, available_ns))


def test_sums_of_long_uploads_do_not_overflow() -> None:
    times = times_of([0] * 100, [NEVER_NS // 3] * 100)
    assert count_bound(times, NEVER_NS) == 2
    assert len(optimal_order(times, NEVER_NS)) == 2
