import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.domain.tasks import PartitionScheme
from services.errors import DataSetError
from services.learning.datasets import draw_partition
from tests.unit.learning.digests import digest

CLASSES = 10
LABELS = torch.randint(CLASSES, (2000,), generator=torch.Generator().manual_seed(1))


def draw(
    scheme: PartitionScheme = PartitionScheme.IID,
    *,
    samples: int = 100,
    task_seed: int = 0,
    partition: int = 0,
) -> torch.Tensor:
    return draw_partition(LABELS, CLASSES, scheme, samples=samples, task_seed=task_seed, partition=partition)


@pytest.mark.parametrize("scheme", PartitionScheme)
@given(samples=st.integers(0, 250), partition=st.integers(0, 10**9))
def test_so_many_places_and_none_twice(scheme: PartitionScheme, samples: int, partition: int) -> None:
    places = draw(scheme, samples=samples, partition=partition)
    assert places.dtype == torch.int64
    assert len(places) == len(torch.unique(places)) == samples
    assert all(0 <= place < len(LABELS) for place in places)


@pytest.mark.parametrize("scheme", PartitionScheme)
@given(few=st.integers(0, 150), more=st.integers(0, 150))
def test_with_more_samples_a_device_keeps_those_it_had(scheme: PartitionScheme, few: int, more: int) -> None:
    assert torch.equal(draw(scheme, samples=few + more)[:few], draw(scheme, samples=few))


def test_devices_have_samples_of_two_classes_or_of_all() -> None:
    pairs = set()
    for partition in range(200):
        pair = torch.unique(LABELS[draw(PartitionScheme.NON_IID, partition=partition)]).tolist()
        assert len(pair) == 2
        pairs.add(tuple(pair))
    assert len(pairs) > 40  # of the 45 that there are
    assert len(torch.unique(LABELS[draw(samples=500)])) == CLASSES


def test_a_device_can_hold_all_of_its_two_classes() -> None:
    first = LABELS[draw(PartitionScheme.NON_IID, samples=2)]
    own = torch.unique(LABELS[draw(PartitionScheme.NON_IID)])
    assert set(first.tolist()) <= set(own.tolist())
    everything = torch.isin(LABELS, own).nonzero().flatten()
    places = draw(PartitionScheme.NON_IID, samples=len(everything))
    assert torch.equal(places.sort().values, everything)


def test_a_data_set_of_one_class_can_be_divided() -> None:
    places = draw_partition(
        torch.zeros(5, dtype=torch.int64),
        1,
        PartitionScheme.NON_IID,
        samples=5,
        task_seed=0,
        partition=0,
    )
    assert sorted(places.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scheme", PartitionScheme)
def test_partitions_of_other_devices_and_tasks_differ(scheme: PartitionScheme) -> None:
    drawn = [draw(scheme, task_seed=task, partition=device) for task in range(3) for device in range(20)]
    assert len({digest({"places": places}) for places in drawn}) == len(drawn)


def test_too_many_samples_are_refused_with_advice() -> None:
    with pytest.raises(DataSetError, match=r"reported 2001 samples.*\(iid\) has only 2000; report fewer"):
        draw(samples=2001)
    own = torch.unique(LABELS[draw(PartitionScheme.NON_IID)])
    there = int(torch.isin(LABELS, own).sum())
    with pytest.raises(
        DataSetError, match=rf"reported {there + 1} samples.*\(non_iid\) has only {there}; report fewer"
    ):
        draw(PartitionScheme.NON_IID, samples=there + 1)
