from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from services.domain.nanoseconds import NEVER_NS
from services.domain.resources import EstimatedTimes
from services.domain.selection.fedcs import greedy_order
from services.domain.selection.optimal import count_bound, optimal_order
from tests.unit.domain.instances import (
    KAPPAS,
    instances,
    max_clients,
    most_clients_in_any_order,
    random_instance,
    round_ns,
    times_of,
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kappa", KAPPAS)
def test_equals_brute_force(kappa: float) -> None:
    rng = np.random.default_rng(int(10 * kappa))
    for _ in range(300):
        times, available_ns = random_instance(rng, max_clients=9, kappa=kappa)
        order = optimal_order(times, available_ns).tolist()
        assert len(order) == len(set(order)) == max_clients(times, available_ns)
        assert not order or round_ns(times, order) < available_ns


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(instances(max_clients=9))
def test_equals_brute_force_with_many_ties(instance: tuple[EstimatedTimes, int]) -> None:
    times, available_ns = instance
    assert len(optimal_order(times, available_ns)) == max_clients(times, available_ns)


def test_no_order_is_better_than_that_of_update_times() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        times, available_ns = random_instance(rng, max_clients=6, kappa=0.5)
        assert max_clients(times, available_ns) == most_clients_in_any_order(times, available_ns)


def test_beats_greed_where_greed_takes_a_slow_radio_first() -> None:
    # Greed begins with the client that is done first, whose slow radio then delays the distribution to all.
    times = times_of([0, 9, 9, 9], [6, 2, 2, 2])
    assert len(greedy_order(times, 18)) == 2
    assert sorted(optimal_order(times, 18).tolist()) == [1, 2, 3]


def test_a_slow_download_is_left_out_where_it_would_delay_all_others() -> None:
    times = times_of([0, 0, 0], [1, 1, 1], [9, 2, 2])
    assert sorted(optimal_order(times, 5).tolist()) == [1, 2]
    assert len(optimal_order(times, 13)) == 3


def test_bound_is_never_below_the_optimum_and_met_without_updates() -> None:
    rng = np.random.default_rng(2)
    for number in range(500):
        kappa = KAPPAS[number % len(KAPPAS)]
        times, available_ns = random_instance(rng, max_clients=12, kappa=kappa)
        assert count_bound(times, available_ns) >= len(optimal_order(times, available_ns))
        instant = replace(times, update_ns=np.zeros_like(times.update_ns))
        assert count_bound(instant, available_ns) == len(optimal_order(instant, available_ns))


def test_sums_of_long_uploads_do_not_overflow() -> None:
    times = times_of([0] * 100, [NEVER_NS // 3] * 100)
    assert count_bound(times, NEVER_NS) == 2
    assert len(optimal_order(times, NEVER_NS)) == 2
