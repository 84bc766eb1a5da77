import numpy as np
import pytest

from services.domain.selection import POLICIES, LeftOutReason
from tests.unit.domain.instances import random_instance, round_ns, times_of


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_candidate_is_selected_or_told_why_not(name: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        times, available_ns = random_instance(rng, max_clients=15)
        selection = POLICIES[name].select(times, available_ns, rng)
        told = [selection.order, *selection.left_out.values()]
        assert sorted(np.concatenate(told).tolist()) == list(range(len(times)))


@pytest.mark.parametrize("name", ["fedcs", "optimal", "fedlim"])
def test_who_is_left_out_for_the_deadline_would_break_it(name: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        times, available_ns = random_instance(rng, max_clients=10)
        selection = POLICIES[name].select(times, available_ns, rng)
        for client in selection.left_out[LeftOutReason.DEADLINE].tolist():
            assert round_ns(times, [*selection.order.tolist(), client]) >= available_ns


@pytest.mark.parametrize("name", ["fedlim", "fl"])
def test_a_random_order_is_the_same_for_the_same_seed(name: str) -> None:
    times = times_of(list(range(50)), [1] * 50)
    orders = [
        POLICIES[name].select(times, 10_000, np.random.default_rng(seed)).order.tolist() for seed in (7, 7, 8)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_fedlim_goes_on_after_a_client_that_does_not_fit() -> None:
    times = times_of([0, 0, 0], [1, 100, 1])
    for seed in range(20):
        order = POLICIES["fedlim"].select(times, 10, np.random.default_rng(seed)).order
        assert sorted(order.tolist()) == [0, 2]


def test_fl_takes_everyone_however_long_it_lasts() -> None:
    selection = POLICIES["fl"].select(times_of([5, 5], [5, 5]), 1, np.random.default_rng(0))
    assert sorted(selection.order.tolist()) == [0, 1]
    assert selection.left_out == {}


def test_only_fedcs_goes_by_cost() -> None:
    times = times_of([0, 0], [1, 9])
    for name, policy in POLICIES.items():
        cost_ns = policy.select(times, 10, np.random.default_rng(0)).cost_ns
        assert (cost_ns is not None) == (name == "fedcs")
