import numpy as np
import pytest

from services.domain.parameters import ParameterError
from services.domain.resources import ResourceReports
from services.domain.selection import (
    POLICIES,
    Candidates,
    ClientHistory,
    make_policy,
    policy_rng,
)
from tests.unit.domain.example_policy import MostReliable
from tests.unit.domain.instances import KAPPAS, random_instance, round_ns, select, times_of

WITH_DEADLINE = [name for name, kind in POLICIES.items() if kind.honours_deadline]


def test_the_paper_s_policies_are_there_and_only_fl_has_no_deadline() -> None:
    assert list(POLICIES) == ["fedcs", "optimal", "fedlim", "fl"]
    assert WITH_DEADLINE == ["fedcs", "optimal", "fedlim"]
    assert [name for name, kind in POLICIES.items() if kind.uses_cost] == ["fedcs"]
    assert not any(kind.uses_history for kind in POLICIES.values())


@pytest.mark.parametrize("name", list(POLICIES))
def test_nobody_is_selected_twice(name: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        times, available_ns = random_instance(rng, max_clients=15)
        order = select(name, times, available_ns, rng).tolist()
        assert len(set(order)) == len(order)
        assert set(order) <= set(range(len(times)))


@pytest.mark.parametrize("name", WITH_DEADLINE)
def test_a_client_that_is_not_selected_would_break_the_deadline(name: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(300):
        times, available_ns = random_instance(rng, max_clients=10, kappa=rng.choice(KAPPAS))
        order = select(name, times, available_ns, rng).tolist()
        for client in set(range(len(times))) - set(order):
            assert round_ns(times, [*order, client]) >= available_ns


@pytest.mark.parametrize("name", ["fedlim", "fl"])
def test_a_random_order_is_the_same_for_the_same_seed(name: str) -> None:
    times = times_of(list(range(50)), [1] * 50)
    orders = [select(name, times, 10_000, policy_rng([3, round_])).tolist() for round_ in (7, 7, 8)]
    assert orders[0] == orders[1] != orders[2]


def test_a_policy_s_random_numbers_are_not_those_of_the_draw_with_the_same_seed() -> None:
    order = policy_rng([3, 7]).permutation(1000)
    drawn = np.random.default_rng([3, 7]).permutation(1000)
    assert abs(np.corrcoef(order, drawn)[0, 1]) < 0.1
    assert (order == drawn).sum() < 10


def test_fedlim_goes_on_after_a_client_that_does_not_fit() -> None:
    times = times_of([0, 0, 0], [1, 100, 1])
    for seed in range(20):
        assert sorted(select("fedlim", times, 10, np.random.default_rng(seed)).tolist()) == [0, 2]


def test_fl_takes_everyone_however_long_it_lasts() -> None:
    assert sorted(select("fl", times_of([5, 5], [5, 5]), 1).tolist()) == [0, 1]


def test_a_policy_is_given_history_and_class_counts_and_its_own_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(POLICIES, "most-reliable", MostReliable)
    counts = np.array([3, 1, 2])
    reports = ResourceReports(np.ones(3), np.ones(3), np.ones(3, dtype=np.int64))
    candidates = Candidates(
        times_of([1, 2, 3], [1, 2, 3]),
        reports,
        ClientHistory(selected=counts + 5, received=counts * 0 + 5, missed=counts),
        class_counts=np.array([[1, 0], [0, 1], [2, 2]]),
    )
    rng = np.random.default_rng(0)
    policy = make_policy("most-reliable", {"clients": 2})
    assert policy.select(candidates, 0, rng).tolist() == [1, 2]
    some = candidates.of(np.array([2, 0]))
    assert make_policy("most-reliable", {}).select(some, 0, rng).tolist() == [0]
    assert some.class_counts is not None
    assert some.class_counts.tolist() == [[2, 2], [1, 0]]
    assert candidates_without_history(candidates).history is None
    with pytest.raises(ParameterError, match="clients: must be at least 1"):
        make_policy("most-reliable", {"clients": 0})


def candidates_without_history(candidates: Candidates) -> Candidates:
    return Candidates(candidates.times, candidates.reports).of(np.array([0]))


def test_a_policy_takes_no_parameters_that_it_does_not_have() -> None:
    with pytest.raises(ParameterError, match="boldness: unknown parameter"):
        make_policy("fedcs", {"boldness": 1})
