import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learning.outliers import Norms, TensorKind, find_outliers, kind_of
from tests.unit.learning.model_files import COUNTER, MEAN, VARIANCE

MODEL = Norms(parameters=30.0, statistics=5.0)


def test_tensors_are_told_apart_by_the_names_that_torch_gives_them() -> None:
    assert kind_of(MEAN) == TensorKind.MEANS
    assert kind_of(VARIANCE) == TensorKind.VARIANCES
    assert kind_of(COUNTER) == TensorKind.COUNTERS
    for name in ("fc.weight", "running_mean.weight", "running_variance", "num_batches_tracked.bias"):
        assert kind_of(name) == TensorKind.PARAMETERS


def test_honest_steps_are_kept() -> None:
    steps = {f"c{place}": Norms(0.5 + place, 3.0 * 10 ** (place / 3)) for place in range(7)}
    assert find_outliers(steps, MODEL) == {}


@pytest.mark.parametrize("bad", [20.001, math.inf, math.nan])
def test_a_step_of_more_than_twenty_times_the_median_is_left_out(bad: float) -> None:
    steps = {"a": Norms(1.0, 1.0), "bad": Norms(bad, 1.0), "b": Norms(1.0, 1.0)}
    outliers = find_outliers(steps, MODEL)
    assert set(outliers) == {"bad"}
    assert outliers["bad"] == (
        f"its update moves the parameters by {bad:.3g} (Euclidean norm); 20 is the most here"
    )
    assert find_outliers({**steps, "bad": Norms(20.0, 1.0)}, MODEL) == {}


@pytest.mark.parametrize("bad", [2001.0, math.inf, math.nan])
def test_statistics_may_move_by_two_thousand_times_the_median(bad: float) -> None:
    steps = {"a": Norms(1.0, 1.0), "bad": Norms(1.0, bad), "b": Norms(1.0, 1.0)}
    outliers = find_outliers(steps, MODEL)
    assert set(outliers) == {"bad"}
    assert "running statistics" in outliers["bad"]
    assert find_outliers({**steps, "bad": Norms(1.0, 2000.0)}, MODEL) == {}


def test_steps_that_go_nowhere_do_not_make_the_others_outliers() -> None:
    steps = {**{f"idle{place}": Norms(0.0, 0.0) for place in range(9)}, "a": Norms(1.0, 1.0)}
    assert find_outliers(steps, MODEL) == {}
    assert find_outliers(steps, Norms(0.0, 0.0)) == {}


def test_steps_without_end_do_not_raise_the_bar() -> None:
    steps = {
        **{f"bad{place}": Norms(math.inf, 1.0) for place in range(9)},
        "a": Norms(1.0, 1.0),
        "long": Norms(1e4, 1.0),
    }
    assert set(find_outliers(steps, Norms(1.0, 1.0))) == {*(f"bad{place}" for place in range(9)), "long"}


@given(
    st.lists(st.floats(1e-3, 1e-3 * 19), min_size=2, max_size=20),
    st.lists(st.floats(1e9, math.inf) | st.just(math.nan), max_size=20),
)
def test_while_most_are_honest_none_of_them_is_left_out_and_no_other_kept(
    honest: list[float], bad: list[float]
) -> None:
    bad = bad[: len(honest) - 1]
    steps = {
        **{f"honest{place}": Norms(norm, 0.0) for place, norm in enumerate(honest)},
        **{f"bad{place}": Norms(norm, 0.0) for place, norm in enumerate(bad)},
    }
    assert set(find_outliers(steps, MODEL)) == {f"bad{place}" for place in range(len(bad))}
