"""What past slots say about reports."""

import numpy as np
import pytest

from services.domain.past_slots import PAST_SLOTS, PastSlots, correct_reports, learn_ratio
from services.domain.resources import ResourceReports

NAN = float("nan")


def _learn(*ratios: float) -> tuple[float, float]:
    """Factor and spread of a client with these ratios, the newest first; another client has none."""
    places = np.ones(len(ratios), dtype=np.intp)
    learned = learn_ratio(places, np.arange(len(ratios)), np.array(ratios), 2)
    assert (learned.factor[0], learned.spread[0]) == (1.0, 0.0)
    return float(learned.factor[1]), float(learned.spread[1])


def test_without_past_slots_the_report_counts() -> None:
    assert _learn() == (1.0, 0.0)


@pytest.mark.parametrize("unknown", [NAN, float("inf"), 0.0, -1.0])
def test_times_that_say_nothing_are_left_out(unknown: float) -> None:
    assert _learn(unknown) == (1.0, 0.0)
    assert _learn(2.0, unknown)[1] == 0.0


def test_a_report_that_is_far_off_is_corrected_after_one_slot() -> None:
    assert _learn(100.0)[0] == pytest.approx(100.0, rel=0.1)
    assert _learn(0.01)[0] == pytest.approx(0.01, rel=0.1)


def test_one_slot_that_is_a_little_off_corrects_by_less_than_half() -> None:
    assert 1.0 < _learn(1.15)[0] < 1.075


def test_ratios_that_agree_are_believed() -> None:
    factor, spread = _learn(*[1.7] * PAST_SLOTS)
    assert factor == pytest.approx(1.7, rel=0.05)
    assert spread == pytest.approx(0.0, abs=1e-9)


def test_ratios_that_fluctuate_around_the_report_leave_it_as_it_is() -> None:
    factor, spread = _learn(1.4, 0.7, 1.3, 0.8, 1.2, 0.75, 1.35, 0.7)
    assert factor == pytest.approx(1.0, abs=0.02)
    assert 0.2 < spread < 0.4


def test_the_newest_slots_count_most() -> None:
    slower = _learn(2.0, 2.0, 1.0, 1.0, 1.0, 1.0)[0]
    faster = _learn(1.0, 1.0, 1.0, 1.0, 2.0, 2.0)[0]
    assert slower > 1.15 > 1.05 > faster


def test_a_correction_has_a_limit() -> None:
    assert _learn(1e9) == (1000.0, 0.0)
    assert _learn(1e-9) == (0.001, 0.0)


def test_ratios_are_of_the_times_that_follow_from_the_report() -> None:
    """The second slot was planned with half of the reported speeds: its planned times are twice as long."""
    past = PastSlots.measured(
        [0, 0, 0],
        [1, 0, 2],
        [(20.0, 10_000_000_000, 50.0, None), (20.0, 20_000_000_000, 50.0, 25.0), (None, 1, 50.0, None)],
        [(6.0, 2_000_000_000, 8e6, None), (6.0, 4_000_000_000, 8e6, 4e6), (1.0, 0, None, None)],
    )
    assert past.update_ratios[:2].tolist() == [2.0, 2.0]
    assert past.upload_ratios[:2].tolist() == [3.0, 3.0]
    assert np.isnan(past.update_ratios[2])
    assert not np.isfinite(past.upload_ratios[2])


def test_corrected_reports_lead_to_the_learned_times() -> None:
    reports = ResourceReports(np.array([8e6, 8e6]), np.array([50.0, 50.0]), np.array([100, 100]))
    past = PastSlots(np.array([1]), np.array([0]), np.array([NAN]), np.array([100.0]))
    expected = correct_reports(reports, past)
    assert expected.throughput_bps[0] == 8e6
    assert expected.throughput_bps[1] == pytest.approx(8e4, rel=0.1)
    assert expected.compute_samples_per_s.tolist() == [50.0, 50.0]
    assert expected.data_samples.tolist() == [100, 100]


def test_without_any_slot_nothing_is_corrected() -> None:
    reports = ResourceReports(np.array([8e6]), np.array([50.0]), np.array([100]))
    expected = correct_reports(reports, PastSlots.measured([], [], [], []))
    assert expected.throughput_bps.tolist() == [8e6]


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.4])
def test_honest_clients_are_corrected_by_less_than_they_fluctuate(spread: float) -> None:
    rng = np.random.default_rng(0)
    clients, slots = 500, PAST_SLOTS
    ratios = 1 / np.maximum(rng.normal(1.0, spread, clients * slots), 0.1)
    owners = np.repeat(np.arange(clients), slots)
    learned = learn_ratio(owners, np.tile(np.arange(slots), clients), ratios, clients)
    assert np.std(np.log(learned.factor)) < spread / 5
