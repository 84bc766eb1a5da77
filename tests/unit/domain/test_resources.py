import numpy as np
import pytest

from services.domain.candidates import count_candidates, draw_candidates
from services.domain.nanoseconds import NEVER_NS, round_to_ns, to_ns, to_seconds
from services.domain.resources import LocalWork, ResourceReports, estimate_times
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
    assert times_of([], []).distribution_ns() == 0


def test_never_done_counts_all_uploads() -> None:
    assert not times_of([10], [10]).never_done()
    assert not times_of([], []).never_done()
    assert times_of([0] * 4, [NEVER_NS // 8] * 4).never_done()


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
