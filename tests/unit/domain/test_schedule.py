from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.domain.resources import EstimatedTimes
from services.domain.schedule import TIME_SLOT_NS, UploadSlot, build_schedule
from tests.unit.domain.instances import KAPPAS, instances, random_instance, round_ns, select, times_of


def test_an_empty_schedule_takes_no_time() -> None:
    schedule = build_schedule(np.array([], dtype=np.intp), times_of([3], [4]))
    assert (len(schedule), schedule.elapsed_ns, schedule.distribution_ns) == (0, 0, 0)
    assert list(schedule.slots()) == []


def test_an_upload_waits_for_its_update_and_for_the_channel() -> None:
    times = times_of([10, 12, 100], [5, 7, 3])
    slots = list(build_schedule(np.array([0, 1, 2]), times).slots())
    assert [(slot.upload_start_ns, slot.upload_end_ns) for slot in slots] == [(10, 15), (15, 22), (100, 103)]
    assert [slot.position for slot in slots] == [0, 1, 2]


def test_boundaries_are_rounded_to_the_nearest_time_slot() -> None:
    just_before_half, half = TIME_SLOT_NS * 3 // 2 - 1, TIME_SLOT_NS * 3 // 2
    times = times_of([just_before_half, half], [1, TIME_SLOT_NS])
    slots = list(build_schedule(np.array([0, 1]), times).slots())
    assert [(slot.time_slot_first, slot.time_slot_count) for slot in slots] == [(1, 1), (2, 1)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim"])
def test_no_schedule_breaks_its_deadline_and_no_slots_overlap(policy: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(1500):
        times, available_ns = random_instance(rng, max_clients=20, kappa=rng.choice(KAPPAS))
        order = select(policy, times, available_ns, rng)
        schedule = build_schedule(order, times)
        assert not len(order) or schedule.distribution_ns + schedule.elapsed_ns < available_ns
        assert schedule.distribution_ns + schedule.elapsed_ns == round_ns(times, order.tolist())
        _assert_disjoint(schedule.slots())


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(instances(), st.sampled_from([1, 249_999, 250_000, 333_333]))
def test_slots_never_overlap_on_the_grid_whatever_the_fraction_of_a_time_slot(
    instance: tuple[EstimatedTimes, int], unit_ns: int
) -> None:
    times = EstimatedTimes(*(column * unit_ns for column in vars(instance[0]).values()))
    _assert_disjoint(build_schedule(np.arange(len(times)), times).slots())


def _assert_disjoint(slots: Iterable[UploadSlot]) -> None:
    end_ns = end_slot = 0
    for slot in slots:
        assert slot.upload_start_ns >= end_ns
        assert slot.time_slot_first >= end_slot
        assert slot.upload_start_ns >= slot.update_ns
        assert slot.upload_end_ns - slot.upload_start_ns == slot.upload_ns
        end_ns, end_slot = slot.upload_end_ns, slot.time_slot_first + slot.time_slot_count
        assert abs(end_slot * TIME_SLOT_NS - end_ns) <= TIME_SLOT_NS / 2  # no drift
