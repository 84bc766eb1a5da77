import pytest

from client_sim.load_report import MemorySample, summarize_memory


def test_the_slope_is_that_after_the_warm_up() -> None:
    warming = [MemorySample(float(at_s), 10.0 * at_s) for at_s in range(30)]
    warm = [MemorySample(float(at_s), 300 + (at_s - 30) / 30) for at_s in range(30, 120)]
    figures = summarize_memory(warming + warm, 120)
    assert figures is not None
    assert figures.slope_mb_per_min == pytest.approx(2)
    assert (figures.first_mb, figures.last_mb) == pytest.approx((300, 300 + 89 / 30))
    assert len(figures.samples) == 120


def test_of_few_samples_little_is_claimed() -> None:
    assert summarize_memory([], 60) is None
    assert summarize_memory([MemorySample(1.0, 50.0)], 60) is None
    two = summarize_memory([MemorySample(40.0, 50.0), MemorySample(50.0, 52.0)], 60)
    assert two is not None
    assert (two.most_mb, two.slope_mb_per_min) == (52, None)
