from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from client_sim.round_simulation import draw_factors, round_rng, simulate_round
from client_sim.scenario import Behaviour
from services.contract.rounds import ScheduleResponse
from tests.unit.client_sim.schedules import paper_schedule

AS_REPORTED = Behaviour()
ROUNDS = 500


@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim", "fl"])
@pytest.mark.parametrize("seed", range(5))
def test_devices_that_keep_to_their_reports_keep_to_the_schedule(policy: str, seed: int) -> None:
    schedule = paper_schedule(policy, seed=seed, selection_s=1.7, aggregation_s=2.3)
    played = simulate_round(schedule, AS_REPORTED, round_rng(seed, 1))
    assert [device.client_id for device in played] == [slot.client_id for slot in schedule.slots]
    for device, slot in zip(played, schedule.slots, strict=True):
        assert (device.update_s, device.upload_s) == (slot.update_s, slot.upload_s)
        assert (device.upload_start_s, device.upload_end_s) == (slot.window_start_s, slot.window_end_s)
        assert not device.late
        assert not device.dropped


def test_a_round_without_slots() -> None:
    empty = paper_schedule().model_copy(update={"slots": []})
    assert simulate_round(empty, Behaviour(uncertainty=0.2, dropout=0.5), round_rng(0, 1)) == []


@pytest.mark.parametrize(("beyond_ns", "late"), [(1, False), (0, True), (-1, True)])
def test_an_upload_has_to_end_before_the_deadline(beyond_ns: int, late: bool) -> None:
    schedule = paper_schedule(aggregation_s=2.5)
    end_ns = round(schedule.slots[-1].window_end_s * 1e9)
    deadline_s = (end_ns + 2_500_000_000 + beyond_ns) / 1e9
    moved = schedule.model_copy(update={"round_deadline_s": deadline_s})
    *others, last = simulate_round(moved, AS_REPORTED, round_rng(0, 1))
    assert last.late is late
    assert not any(device.late for device in others)


def test_without_a_deadline_nobody_is_late() -> None:
    schedule = paper_schedule("fl")
    played = simulate_round(schedule, Behaviour(uncertainty=0.2), round_rng(0, 1))
    assert (played[-1].upload_end_s or 0) > schedule.round_deadline_s
    assert not any(device.late for device in played)


def test_those_who_drop_out_leave_the_channel_to_the_next() -> None:
    schedule = paper_schedule()
    played = simulate_round(schedule, Behaviour(dropout=0.5), round_rng(0, 1))
    assert 0 < sum(device.dropped for device in played) < len(played)
    free_s = begin_s = schedule.distribution_s
    for device in played:
        if device.dropped:
            assert device.upload_start_s is None
            assert not device.late
            continue
        assert device.upload_start_s == pytest.approx(max(free_s, begin_s + device.update_s))
        assert device.upload_end_s is not None
        free_s = device.upload_end_s
    assert all(device.dropped for device in simulate_round(schedule, Behaviour(dropout=1), round_rng(0, 1)))


def test_as_many_drop_out_as_are_meant_to() -> None:
    schedule = paper_schedule("fl")
    played = [
        device
        for number in range(100)
        for device in simulate_round(schedule, Behaviour(dropout=0.3), round_rng(0, number))
    ]
    error = np.sqrt(0.3 * 0.7 / len(played))
    assert np.mean([device.dropped for device in played]) == pytest.approx(0.3, abs=4 * error)


def test_a_round_goes_the_same_however_often_it_is_played() -> None:
    schedule, behaviour = paper_schedule(), Behaviour(uncertainty=0.2, dropout=0.1)
    played = simulate_round(schedule, behaviour, round_rng(3, 7))
    assert simulate_round(schedule, behaviour, round_rng(3, 7)) == played
    assert simulate_round(schedule, behaviour, round_rng(3, 8)) != played
    assert simulate_round(schedule, behaviour, round_rng(4, 7)) != played


def test_those_who_leave_come_back_and_upload_after_the_others() -> None:
    behaviour = Behaviour(leaving=0.5, away_s=(1.0, 200.0))
    schedule = paper_schedule("fl")
    seen: Counter[str] = Counter()
    for number in range(50):
        played = simulate_round(schedule, behaviour, round_rng(0, number))
        by_start = sorted(played, key=lambda device: device.upload_start_s or 0)
        free_s = schedule.distribution_s
        for device, slot in zip(played, schedule.slots, strict=True):
            start_s, end_s, absence = device.upload_start_s, device.upload_end_s, device.absence
            assert start_s is not None
            assert end_s is not None
            if absence is None:
                assert device.update_s == slot.update_s
                continue
            left_s, back_s = absence.left_ns / 1e9, absence.back_ns / 1e9
            assert schedule.distribution_s <= left_s <= slot.window_end_s
            assert 1 <= back_s - left_s <= 200
            assert end_s <= left_s or back_s <= start_s, "it does not send while it is away"
            stopped_s = device.update_s - slot.update_s
            left_in_update = left_s < schedule.distribution_s + slot.update_s
            assert stopped_s == pytest.approx(back_s - left_s if left_in_update else 0, abs=1e-8)
            seen["left too late to matter" if end_s <= left_s else "kept or lost its turn"] += 1
        for device in by_start:
            assert (device.upload_start_s or 0) >= free_s - 1e-8, "one upload at a time"
            free_s = device.upload_end_s or 0
        kept = [device for device in played if device.absence is None]
        assert kept == sorted(kept, key=lambda device: device.upload_start_s or 0)
    assert len(seen) == 2


def test_a_turn_is_lost_only_if_it_comes_during_the_absence() -> None:
    """Four devices, a turn of ten seconds each; the second is away for a while."""
    first, *_ = paper_schedule("fl").slots
    cell = paper_schedule("fl").cells[0].model_copy(update={"distribution_s": 0.0})
    slots = [
        first.model_copy(
            update={"client_id": f"c{number}", "update_s": 1.0, "upload_s": 10.0, "window_end_s": 100.0}
        )
        for number in range(4)
    ]
    schedule = paper_schedule("fl").model_copy(
        update={"cells": [cell], "slots": slots, "distribution_s": 0.0}
    )
    orders = set()
    for number in range(400):
        rng = round_rng(0, number)
        played = simulate_round(schedule, Behaviour(leaving=0.25, away_s=(2.0, 30.0)), rng)
        away = [device for device in played if device.absence is not None]
        if [device.client_id for device in away] != ["c1"]:
            continue
        (device,), absence = away, away[0].absence
        assert absence is not None
        left_s, back_s = absence.left_ns / 1e9, absence.back_ns / 1e9
        if left_s >= 21 or back_s <= 11:
            expected_s = 11.0 if left_s >= 1 or back_s <= 1 else max(11.0, 1 + back_s - left_s)
            order = "kept"
        else:
            others_s = max(left_s, 11.0) + 20.0
            expected_s = max(others_s, back_s)
            order = "lost"
        assert device.upload_start_s == pytest.approx(expected_s, abs=1e-8)
        orders.add(order)
    assert orders == {"kept", "lost"}


def test_absences_change_nothing_else() -> None:
    schedule = paper_schedule()
    plain = simulate_round(schedule, Behaviour(uncertainty=0.2, dropout=0.2), round_rng(0, 1))
    leaving = Behaviour(uncertainty=0.2, dropout=0.2, leaving=1.0, away_s=(1e-9, 1e-9))
    away = simulate_round(schedule, leaving, round_rng(0, 1))
    assert [device.dropped for device in away] == [device.dropped for device in plain]
    assert all(device.absence is not None for device in away)
    assert sum(device.update_s for device in away) == pytest.approx(sum(device.update_s for device in plain))


@pytest.mark.parametrize("uncertainty", [0.2, 1.0])
def test_factors_are_positive_and_normal(uncertainty: float) -> None:
    factors = draw_factors(uncertainty, 100_000, np.random.default_rng(0))
    assert factors.min() > 0
    normal = np.random.default_rng(1).normal(1, uncertainty, 100_000)
    expected = normal[normal > 0]
    error = np.sqrt(factors.var() / factors.size + expected.var() / expected.size)
    assert abs(factors.mean() - expected.mean()) < 4 * error
    assert np.quantile(factors, 0.1) == pytest.approx(np.quantile(expected, 0.1), rel=0.02)


@pytest.mark.parametrize("uncertainty", [0.1, 0.2])
def test_the_late_share_is_that_of_a_monte_carlo(uncertainty: float) -> None:
    behaviour = Behaviour(uncertainty=uncertainty)
    expected, differences, variances = [], [], []
    for seed in range(10):
        schedule = paper_schedule(seed=seed)
        played = (simulate_round(schedule, behaviour, round_rng(seed, number)) for number in range(ROUNDS))
        shares = np.array([np.mean([device.late for device in devices]) for devices in played])
        others = monte_carlo_late_shares(schedule, uncertainty)
        expected.append(others.mean())
        differences.append(shares.mean() - others.mean())
        variances.append(shares.var() / shares.size + others.var() / others.size)
    error = np.sqrt(np.sum(variances))
    assert np.sum(expected) > 10 * error, "too few rounds to tell"
    assert abs(np.sum(differences)) < 4 * error


def monte_carlo_late_shares(schedule: ScheduleResponse, uncertainty: float) -> npt.NDArray[np.float64]:
    """Of the same model, from its description: all rounds at once, in floats, with rng of its own."""
    rng = np.random.default_rng(99)
    updates, uploads = (
        np.array([getattr(slot, name) for slot in schedule.slots]) for name in ("update_s", "upload_s")
    )
    speeds = rng.normal(1, uncertainty, (2, 10 * ROUNDS, len(updates)))
    speeds = speeds[:, (speeds > 0).all(axis=(0, 2))]
    channel = np.zeros(speeds.shape[1])
    late = np.zeros(speeds.shape[1])
    for slot in range(len(updates)):
        ready = updates[slot] / speeds[0, :, slot]
        channel = np.where(ready > channel, ready, channel) + uploads[slot] / speeds[1, :, slot]
        late += schedule.distribution_s + channel >= schedule.round_deadline_s
    return late / len(updates)


def test_each_cell_has_its_own_channel_and_distribution() -> None:
    schedule = paper_schedule()
    alone = simulate_round(schedule, Behaviour(), round_rng(0, 1))
    (cell,) = schedule.cells
    other = cell.model_copy(update={"cell_id": "other"})
    in_other = {"cell_id": "other"}
    twins = [slot.model_copy(update=in_other) for slot in schedule.slots]
    both = schedule.model_copy(update={"cells": [cell, other], "slots": [*schedule.slots, *twins]})
    together = simulate_round(both, Behaviour(), round_rng(0, 1))
    ends_s = [slot.upload_end_s for slot in alone]
    assert [slot.upload_end_s for slot in together] == ends_s * 2
    later = other.model_copy(update={"distribution_s": cell.distribution_s + 1})
    delayed = simulate_round(both.model_copy(update={"cells": [cell, later]}), Behaviour(), round_rng(0, 1))
    assert delayed[-1].upload_end_s == pytest.approx((ends_s[-1] or 0) + 1)
