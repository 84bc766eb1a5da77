"""The uplinks of devices over time."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from client_sim.fleet import Fleet
from client_sim.round_simulation import round_rng, simulate_round
from client_sim.scenario import Behaviour, Scenario, load_scenario
from client_sim.traces import NS_PER_S, Trace
from client_sim.uplinks import (
    RoundUplinks,
    ScaledUplinks,
    ShadowFading,
    TraceUplinks,
    Uplinks,
    Walk,
    Walking,
    draw_uplinks,
)
from services.contract.rounds import ScheduleResponse
from tests.unit.client_sim.schedules import paper_schedule

S = NS_PER_S
HALF_OUT = Trace([0, 10 * S], [1_000_000, 0], 20 * S)
"""1 Mbit/s for ten seconds, then an outage of ten seconds."""


def traces_of(tmp_path: Path, clients: int = 5, **settings: object) -> Scenario:
    path = tmp_path / "a.csv"
    path.write_text("time_s,bps\n0,1000000\n10,0\n20,3000000\n", encoding="utf-8")
    small = load_scenario("small").changed(clients=clients, traces=[str(path)])
    assert small.traces is not None
    return small.model_copy(update={"traces": small.traces.model_copy(update=settings)})


def mobile(clients: int = 5, seed: int = 0) -> Scenario:
    return load_scenario("mobile").changed(clients=clients, seed=seed)


def uplinks_of(scenario: Scenario, time_scale: float = 1.0) -> Uplinks:
    uplinks = Fleet.draw(scenario, "fleet", time_scale).uplinks
    assert uplinks is not None
    return uplinks


@pytest.mark.parametrize(
    ("start_s", "bits", "end_s"),
    [(0, 1_000_000, 1), (9, 1_000_000, 10), (9, 1_000_001, 20.000001), (12, 1, 20.000001), (0, 25e6, 45)],
)
def test_an_upload_waits_through_an_outage(start_s: int, bits: float, end_s: float) -> None:
    uplinks = TraceUplinks([HALF_OUT, HALF_OUT], [0, 5 * S], 10 * S)
    assert uplinks.sent_ns(0, start_s * S, Fraction(bits)) == round(end_s * S)
    assert uplinks.sent_ns(1, (start_s - 5) * S, Fraction(bits)) == round((end_s - 5) * S)
    assert uplinks.sent_ns(0, 12 * S, Fraction(0)) == 12 * S


def test_devices_report_the_mean_of_the_last_seconds() -> None:
    uplinks = TraceUplinks([HALF_OUT], [0], 4 * S)
    measured = [uplinks.throughput_bps(0, at_s * S) for at_s in (0, 2, 4, 10, 11, 14, 22)]
    assert measured == [0, 500_000, 1_000_000, 1_000_000, 750_000, 0, 500_000]


def test_each_device_has_its_own_offset(tmp_path: Path) -> None:
    uplinks = uplinks_of(traces_of(tmp_path, clients=200))
    assert isinstance(uplinks, TraceUplinks)
    assert 190 < len(set(uplinks.offsets_ns)) <= 200
    assert 0 <= min(uplinks.offsets_ns) < max(uplinks.offsets_ns) < 30 * S
    again, other = uplinks_of(traces_of(tmp_path, 200)), uplinks_of(traces_of(tmp_path, 200).changed(seed=1))
    assert isinstance(again, TraceUplinks)
    assert isinstance(other, TraceUplinks)
    assert again.offsets_ns == uplinks.offsets_ns != other.offsets_ns


def test_a_report_changes_with_time_and_is_never_below_the_least(tmp_path: Path) -> None:
    fleet = Fleet.draw(traces_of(tmp_path, clients=50, report_mean_s=1), "fleet")
    reported = {fleet.report_of(number, at_s).throughput_bps for number in range(50) for at_s in (0.0, 7.0)}
    assert min(value or 0 for value in reported) == 100
    assert max(value or 0 for value in reported) == 3_000_000
    assert [fleet.report_of(number).throughput_bps for number in range(50)] == (
        fleet.reports.throughput_bps.tolist()
    )


def test_phones_have_the_speeds_of_a_list(tmp_path: Path) -> None:
    phones = tmp_path / "phones.json"
    phones.write_text('[{"CPU_F_AI_Score": 200}, {"CPU_F_AI_Score": 50}]', encoding="utf-8")
    fleet = Fleet.draw(traces_of(tmp_path, clients=50, phones=str(phones)), "fleet", 2.0)
    assert set(fleet.reports.compute_samples_per_s.tolist()) == {100.0, 25.0}


def in_round(schedule: ScheduleResponse, rates_bps: list[int], began_s: float = 0.0) -> RoundUplinks:
    """Devices whose throughput does not change."""
    traces = [Trace([0], [rate], S) for rate in rates_bps]
    numbers = {slot.client_id: number for number, slot in enumerate(schedule.slots)}
    uplinks = TraceUplinks(traces, [0] * len(traces), S)
    return RoundUplinks(uplinks, numbers.__getitem__, schedule, began_s)


@pytest.mark.parametrize("blocks", [10, 7, 20])
def test_with_a_throughput_that_does_not_change_uploads_keep_to_the_schedule(blocks: int) -> None:
    planned = paper_schedule()
    bits = 8 * planned.upload_size_bytes
    rates = [round(bits / slot.upload_s) for slot in planned.slots]
    cells = [cell.model_copy(update={"resource_block_count": blocks}) for cell in planned.cells]
    schedule = planned.model_copy(update={"cells": cells})
    played = simulate_round(schedule, Behaviour(), round_rng(0, 1), in_round(schedule, rates, 1234.5))
    free_s = schedule.distribution_s
    for slot, rate in zip(played, rates, strict=True):
        free_s = max(free_s, schedule.distribution_s + slot.update_s) + bits * 10 / blocks / rate
        assert slot.upload_end_s == pytest.approx(free_s, abs=2e-8)
        free_s = slot.upload_end_s or 0


def test_an_upload_depends_on_the_time_of_its_round() -> None:
    schedule = paper_schedule()
    slot = schedule.slots[0]
    uplinks = TraceUplinks([HALF_OUT], [0], 10 * S)
    early, late = (RoundUplinks(uplinks, lambda _: 0, schedule, began_s) for began_s in (0.0, 13.0))
    assert early.throughput_bps(slot.client_id, 10 * S) == 1_000_000
    assert late.throughput_bps(slot.client_id, 7 * S) == 100
    for start_ns in (0, 3 * S, 19 * S):
        whole_ns = early.sent_ns(slot.client_id, start_ns + 13 * S)
        assert late.sent_ns(slot.client_id, start_ns) == whole_ns - 13 * S
    half_ns = early.sent_ns(slot.client_id, 0, 0.5)
    assert uplinks.traces[0].sum_until(half_ns) == 4 * schedule.upload_size_bytes * S


def test_on_a_faster_clock(tmp_path: Path) -> None:
    slow, fast = uplinks_of(traces_of(tmp_path)), uplinks_of(traces_of(tmp_path), 20.0)
    assert isinstance(fast, ScaledUplinks)
    for number in range(5):
        assert fast.throughput_bps(number, 2 * S) == 20 * slow.throughput_bps(number, 40 * S)
        end_ns = slow.sent_ns(number, 40 * S, Fraction(10**7))
        assert fast.sent_ns(number, 2 * S, Fraction(10**7)) == round(end_ns / 20)


def test_without_traces_and_movement_the_throughput_stays() -> None:
    assert draw_uplinks(load_scenario("small"), np.ones(3), 1.0) is None
    fleet = Fleet.draw(load_scenario("small"), "fleet")
    assert fleet.round_uplinks(paper_schedule(), 0.0) is None
    assert fleet.report_of(3, 1000.0) == fleet.report_of(3)


def test_a_moving_device_uploads_at_the_throughput_of_its_places() -> None:
    """Against the sum of what it measures in each second."""
    scenario = mobile()
    assert scenario.mobility is not None
    each_second = scenario.mobility.model_copy(update={"report_mean_s": 1})
    uplinks = uplinks_of(scenario.model_copy(update={"mobility": each_second}))
    for number in range(5):
        rates = [uplinks.throughput_bps(number, (second + 1) * S) for second in range(200, 700)]
        bits = Fraction(sum(rates[:-1])) + Fraction(rates[-1]) / 2
        assert uplinks.sent_ns(number, 200 * S, bits) == 699 * S + S // 2
        quarter = Fraction(rates[0]) / 4
        assert uplinks.sent_ns(number, 200 * S + S // 2, quarter) == 200 * S + 3 * S // 4
        assert uplinks.sent_ns(number, 200 * S + 7, Fraction(0)) == 200 * S + 7
        mean = uplinks_of(scenario).throughput_bps(number, 210 * S)
        assert mean == pytest.approx(sum(rates[:10]) / 10)


def test_the_seed_makes_the_way_whenever_it_is_asked_for() -> None:
    first, same, other = (uplinks_of(mobile(seed=seed)) for seed in (0, 0, 1))
    late = first.throughput_bps(2, 5000 * S)
    for at_s in range(0, 5000, 500):
        same.throughput_bps(2, at_s * S)
    assert same.throughput_bps(2, 5000 * S) == late != other.throughput_bps(2, 5000 * S)
    assert first.throughput_bps(3, 5000 * S) != late


def test_a_device_stays_in_the_cell_and_within_its_speed() -> None:
    walk = Walk(Walking(500.0, (2.0, 10.0), (0.0, 30.0)), (300.0, 400.0), [0, 1])
    positions = walk.positions(np.arange(-10.0, 5000.0))
    assert positions[:11].tolist() == [[300.0, 400.0]] * 11
    assert np.hypot(*positions.T).max() <= 500 * (1 + 1e-9)
    steps_m = np.hypot(*np.diff(positions, axis=0).T)
    assert 9 < steps_m.max() <= 10 * (1 + 1e-9)
    assert (steps_m == 0).mean() > 0.05, "it pauses"
    assert np.hypot(*positions.T).min() < 250, "it gets around"


@pytest.mark.parametrize(("distance_m", "expected"), [(0.0, 1.0), (25.0, 0.61), (50.0, 0.37), (500.0, 0.0)])
def test_shadow_fading_is_correlated_in_space(distance_m: float, expected: float) -> None:
    rng = np.random.default_rng(0)
    here, there = [], []
    for _ in range(2000):
        fading = ShadowFading(6.0, 50.0, rng)
        near, far = fading.at(np.array([[10.0, 20.0], [10.0 + 0.6 * distance_m, 20.0 + 0.8 * distance_m]]))
        here.append(near)
        there.append(far)
    assert np.std(here) == pytest.approx(6.0, rel=0.08)
    assert np.mean(here) == pytest.approx(0.0, abs=0.6)
    assert np.corrcoef(here, there)[0, 1] == pytest.approx(expected, abs=0.1)
