import math

import numpy as np
import pytest

from operator_api.dashboard.cell_page import direction, jains_index, sample


def test_a_sample_is_the_same_again_and_changes_little_when_clients_are_added() -> None:
    serials = np.arange(1, 10_001)
    drawn = sample(serials, 2000)
    assert len(np.unique(drawn)) == 2000
    assert np.isin(drawn, serials).all()
    assert (drawn == sample(np.flip(serials), 2000)).all()
    assert np.isin(drawn, sample(np.arange(1, 10_101), 2000)).mean() > 0.95
    for fifth in np.split(serials, 5):
        assert np.isin(drawn, fifth).sum() == pytest.approx(400, abs=40), "not only the old ones"


@pytest.mark.parametrize("number", [0, 1, 1999, 2000])
def test_few_are_all_drawn(number: int) -> None:
    serials = np.arange(number, 0, -1)
    assert sample(serials, 2000).tolist() == list(range(1, number + 1))


@pytest.mark.parametrize(
    ("times", "index"),
    [([3, 3, 3], 1.0), ([5, 0, 0, 0], 0.25), ([1, 2, 3], 36 / (3 * 14)), ([0, 0], None), ([], None)],
)
def test_jains_index(times: list[int], index: float | None) -> None:
    assert jains_index(np.array(times, np.int64)) == (None if index is None else pytest.approx(index))


def test_directions_are_spread_and_stay() -> None:
    angles = np.array([direction(f"c{number}") for number in range(4000)])
    assert direction("c7") == angles[7]
    assert 0 <= angles.min() < angles.max() < 2 * math.pi
    quarters, _ = np.histogram(angles, 4, (0, 2 * math.pi))
    assert quarters == pytest.approx(1000, abs=150)
