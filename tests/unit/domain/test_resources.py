import numpy as np
import pytest

from services.domain.nanoseconds import NEVER_NS, round_to_ns, to_ns, to_seconds
from services.domain.resources import (
    EstimatedTimes,
    LocalWork,
    ResourceReports,
    count_candidates,
    draw_candidates,
    estimate_times,
)
from tests.unit.domain.instances import times_of


def reports(throughput_bps: float, compute: float, samples: int, blocks: int = 10) -> ResourceReports:
    return ResourceReports(np.array([throughput_bps]), np.array([compute]), np.array([samples]), blocks)


def test_times_follow_from_the_report() -> None:
    times = estimate_times(reports(8_640_000, 50, 200), LocalWork(18_300_000, local_epochs=5))
    assert times.update_ns.tolist() == [20_000_000_000]
    assert times.upload_ns.tolist() == [16_944_444_444]
    assert len(times) == len(reports(1, 1, 1)) == 1


@pytest.mark.parametrize(("own", "reported", "factor"), [(5, 10, 2), (10, 5, 0.5), (20, 10, 0.5)])
def test_throughput_scales_with_the_resource_blocks(own: int, reported: int, factor: float) -> None:
    full = estimate_times(reports(1e6, 10, 10), LocalWork(1_000_000))
    scaled = estimate_times(reports(1e6, 10, 10, blocks=reported), LocalWork(1_000_000, resource_blocks=own))
    assert scaled.upload_ns.tolist() == [round(full.upload_ns.item() * factor)]
    assert scaled.update_ns.tolist() == full.update_ns.tolist()


def test_a_download_of_its_own_size_is_rounded_by_itself() -> None:
    work = LocalWork(18_300_000, download_size_bytes=9_150_001)
    times = estimate_times(reports(7e6, 50, 200), work)
    assert times.upload_ns.tolist() == [20_914_285_714]
    assert times.download_ns.tolist() == [10_457_144_000]  # half of the upload would be …142 857
    same = estimate_times(reports(7e6, 50, 200), LocalWork(18_300_000))
    assert same.download_ns.tolist() == same.upload_ns.tolist() == times.upload_ns.tolist()


def test_some_of_the_times_in_another_order() -> None:
    some = times_of([1, 2, 3], [10, 20, 30], [5, 6, 7]).of(np.array([2, 0]))
    assert [column.tolist() for column in vars(some).values()] == [[3, 1], [30, 10], [7, 5]]
    same = times_of([1, 2, 3], [10, 20, 30]).of(np.array([2, 0]))
    assert same.download_ns is same.upload_ns


def test_some_of_the_reports_in_another_order() -> None:
    columns = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), np.array([7, 8, 9])
    some = ResourceReports(*columns, 20).of(np.array([2, 0]))
    assert some.throughput_bps.tolist() == [3, 1]
    assert some.compute_samples_per_s.tolist() == [6, 4]
    assert some.data_samples.tolist() == [9, 7]
    assert some.resource_blocks == 20


def test_what_takes_too_long_to_say_is_cut_off() -> None:
    times = estimate_times(reports(1e-300, 1e-300, 10**12), LocalWork(10**13))
    assert times.update_ns.tolist() == times.upload_ns.tolist() == [NEVER_NS]
    assert to_ns(1e300) == NEVER_NS
    assert round_to_ns(np.array([1e300, 1.5e-9])).tolist() == [NEVER_NS, 2]


def test_seconds_and_back() -> None:
    assert to_ns(0.1) == 100_000_000
    assert to_seconds(to_ns(180.25)) == 180.25


def test_distribution_takes_as_long_as_the_worst_radio() -> None:
    assert times_of([1, 2], [30, 40]).distribution_ns() == 40
    assert times_of([1, 2], [30, 40], [90, 20]).distribution_ns() == 90
    assert times_of([], []).distribution_ns() == 0


def test_a_round_without_a_deadline_takes_less_than_36_years() -> None:
    half = NEVER_NS // 2
    assert times_of([], []).fit_longest_round().tolist() == []
    assert times_of([10, NEVER_NS, 10, half], [10, 10, NEVER_NS, 0]).fit_longest_round().tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert times_of([0, 0], [1, 1], [5, half]).fit_longest_round().tolist() == [True, False]
    # All uploads together: of eight the slowest are too many, wherever they stand.
    uploads = [half // 4, 1, half // 4, half // 4 + 1, 2, half // 4, half // 4 + 1, 3]
    expected = [True, True, True, False, True, True, False, True]
    assert times_of([0] * 8, uploads).fit_longest_round().tolist() == expected


@pytest.mark.parametrize(
    ("clients", "fraction", "expected"),
    [(1000, 0.1, 100), (100, 0.07, 7), (3, 0.1, 1), (0, 0.1, 0), (9, 1, 9)],
)
def test_the_fraction_is_rounded_up_as_written(clients: int, fraction: float, expected: int) -> None:
    assert count_candidates(clients, fraction) == expected


def test_candidates_are_distinct_seeded_and_fair() -> None:
    drawn = draw_candidates(1000, 0.1, np.random.default_rng(1))
    assert len(set(drawn.tolist())) == 100
    assert drawn.tolist() == draw_candidates(1000, 0.1, np.random.default_rng(1)).tolist()
    rng = np.random.default_rng(2)
    counts = np.zeros(20)
    for _ in range(4000):
        counts[draw_candidates(20, 0.25, rng)] += 1
    # Each is drawn 1,000 times on average, with a standard deviation of 27.
    assert abs(counts - 1000).max() < 4 * 27.4


def test_times_are_scaled_and_rounded() -> None:
    upload_ns = np.array([10, 15], dtype=np.int64)
    times = EstimatedTimes(np.array([3, NEVER_NS], dtype=np.int64), upload_ns, upload_ns)
    assert times.scaled(1.0) is times
    halved = times.scaled(0.5)
    assert halved.update_ns.tolist() == [2, NEVER_NS // 2]
    assert halved.upload_ns.tolist() == [5, 8]
    assert halved.download_ns is halved.upload_ns
    other = EstimatedTimes(times.update_ns, upload_ns, 2 * upload_ns).scaled(2.0)
    assert (other.update_ns.tolist(), other.download_ns.tolist()) == ([6, NEVER_NS], [40, 60])
