from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.literal_greedy import literal_greedy
from services.domain.nanoseconds import NEVER_NS
from services.domain.radio import Cell
from services.domain.resources import EstimatedTimes, LocalWork, estimate_times
from services.domain.selection import fedcs
from services.domain.selection.fedcs import costs_ns, greedy_order
from tests.unit.domain.instances import KAPPAS, instances, random_instance, round_ns, times_of


@pytest.mark.exhaustive
@settings(max_examples=500, deadline=None)
@given(instances())
def test_equals_the_algorithm_box(instance: tuple[EstimatedTimes, int]) -> None:
    times, available_ns = instance
    assert greedy_order(times, available_ns).tolist() == literal_greedy(times, available_ns)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first_look", [1, 2, 5, 256])
@pytest.mark.parametrize("kappa", KAPPAS)
def test_equals_the_algorithm_box_however_few_are_looked_at_first(
    kappa: float, first_look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedcs, "_FIRST_LOOK", first_look)
    rng = np.random.default_rng([first_look, int(10 * kappa)])
    for _ in range(200):
        times, available_ns = random_instance(rng, max_clients=25, kappa=kappa)
        assert greedy_order(times, available_ns).tolist() == literal_greedy(times, available_ns)


@pytest.mark.parametrize("first_look", [1, 5])
def test_equals_the_algorithm_box_where_downloads_have_nothing_to_do_with_uploads(
    first_look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedcs, "_FIRST_LOOK", first_look)
    rng = np.random.default_rng(first_look)
    for _ in range(500):
        times, available_ns = random_instance(rng, max_clients=25)
        times = replace(times, download_ns=rng.permutation(times.upload_ns))
        assert greedy_order(times, available_ns).tolist() == literal_greedy(times, available_ns)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_size_bytes", [18_300_000, 100_000, 1_000])
@pytest.mark.parametrize("deadline_s", [30, 180, 2000])
@pytest.mark.parametrize("download_size_bytes", [None, 200_000])
def test_equals_the_algorithm_box_on_large_cells(
    model_size_bytes: int, deadline_s: int, download_size_bytes: int | None
) -> None:
    reports = Cell().draw_reports(1000, np.random.default_rng(deadline_s))
    work = LocalWork(model_size_bytes, download_size_bytes=download_size_bytes)
    times = estimate_times(reports, work)
    available_ns = deadline_s * 10**9
    assert greedy_order(times, available_ns).tolist() == literal_greedy(times, available_ns)


def test_no_candidates() -> None:
    assert greedy_order(times_of([], []), 100).tolist() == []


def test_one_client_fits_only_strictly_before_the_deadline() -> None:
    times = times_of([10], [5])  # 5 to distribute, 10 to update, 5 to upload
    assert greedy_order(times, 20).tolist() == []
    assert greedy_order(times, 21).tolist() == [0]


def test_nothing_fits() -> None:
    assert greedy_order(times_of([100, 200], [50, 50]), 150).tolist() == []


def test_everything_fits() -> None:
    assert greedy_order(times_of([30, 10, 20], [1, 1, 1]), 1000).tolist() == [1, 2, 0]


def test_equal_clients_are_taken_in_order_of_position() -> None:
    assert greedy_order(times_of([7] * 6, [3] * 6), 3 + 7 + 4 * 3 + 1).tolist() == [0, 1, 2, 3]


def test_ready_and_updating_client_of_the_same_cost_go_by_position() -> None:
    # After client 2 the elapsed time is 4: client 0 costs 1 + 3 to wait for, client 1 costs 4 to upload.
    times = times_of([7, 1, 0], [1, 4, 4])
    assert greedy_order(times, 100).tolist()[:2] == [2, 0]


def test_the_least_cost_of_all_may_not_fit_though_a_lower_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedcs, "_FIRST_LOOK", 1)
    # Alone each of the slow updaters would be done at 102, but after the distribution to client 0 at 106.
    times = times_of([5] + [100] * 6, [5] + [1] * 6)
    assert greedy_order(times, 105).tolist() == literal_greedy(times, 105) == [0]


def test_of_equal_uploads_the_shorter_download_comes_first_until_the_distribution_covers_both() -> None:
    # Client 1 prolongs the distribution by 3, client 0 by 5. After client 2 it covers both.
    assert greedy_order(times_of([0, 0], [4, 4], [5, 3]), 100).tolist() == [1, 0]
    assert greedy_order(times_of([0, 0, 0], [4, 4, 0], [5, 3, 6]), 100).tolist() == [2, 0, 1]


def test_a_download_longer_than_the_upload_counts() -> None:
    times = times_of([10], [5], [7])
    assert greedy_order(times, 22).tolist() == []
    assert greedy_order(times, 23).tolist() == [0]


def test_durations_that_never_end_do_not_overflow() -> None:
    times = times_of([NEVER_NS, 5, 5], [1, NEVER_NS, 1])
    assert greedy_order(times, NEVER_NS).tolist() == [2]


def test_sums_of_long_uploads_do_not_overflow() -> None:
    times = times_of([0] * 3000, [NEVER_NS // 3] * 3000)
    assert greedy_order(times, NEVER_NS).tolist() == [0, 1]  # with the distribution that is all of it


def test_costs_are_what_the_round_grows_by() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        times, available_ns = random_instance(rng, max_clients=8, kappa=2)
        order = greedy_order(times, available_ns).tolist()
        before = round_ns(times, order)
        distribution = max((int(times.download_ns[client]) for client in order), default=0)
        costs = costs_ns(times, distribution, before - distribution)
        for client in set(range(len(times))) - set(order):
            assert costs[client] == round_ns(times, [*order, client]) - before
