import math
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.clipping import (
    ClipTerms,
    StepNorms,
    StepScales,
    cap_samples,
    clip_steps,
    find_outliers,
    limit_weights,
    median_norms,
)

MODEL = StepNorms(parameters=30.0, statistics=5.0)


def test_honest_steps_are_kept() -> None:
    steps = {f"c{place}": StepNorms(0.5 + place, 3.0 * 10 ** (place / 3)) for place in range(7)}
    assert find_outliers(steps, MODEL) == {}


@pytest.mark.parametrize("bad", [20.001, math.inf, math.nan])
def test_a_step_of_more_than_twenty_times_the_median_is_left_out(bad: float) -> None:
    steps = {"a": StepNorms(1.0, 1.0), "bad": StepNorms(bad, 1.0), "b": StepNorms(1.0, 1.0)}
    outliers = find_outliers(steps, MODEL)
    assert set(outliers) == {"bad"}
    assert outliers["bad"] == (
        f"outlier: the update changes the parameters by {bad:.3g} (Euclidean norm); the limit is 20"
    )
    assert find_outliers({**steps, "bad": StepNorms(20.0, 1.0)}, MODEL) == {}


@pytest.mark.parametrize("bad", [2001.0, math.inf, math.nan])
def test_statistics_may_move_by_two_thousand_times_the_median(bad: float) -> None:
    steps = {"a": StepNorms(1.0, 1.0), "bad": StepNorms(1.0, bad), "b": StepNorms(1.0, 1.0)}
    outliers = find_outliers(steps, MODEL)
    assert set(outliers) == {"bad"}
    assert "running statistics" in outliers["bad"]
    assert find_outliers({**steps, "bad": StepNorms(1.0, 2000.0)}, MODEL) == {}


def test_steps_that_go_nowhere_do_not_make_the_others_outliers() -> None:
    steps = {**{f"idle{place}": StepNorms(0.0, 0.0) for place in range(9)}, "a": StepNorms(1.0, 1.0)}
    assert find_outliers(steps, MODEL) == {}
    assert find_outliers(steps, StepNorms(0.0, 0.0)) == {}


def test_steps_without_end_do_not_raise_the_bar() -> None:
    steps = {
        **{f"bad{place}": StepNorms(math.inf, 1.0) for place in range(9)},
        "a": StepNorms(1.0, 1.0),
        "long": StepNorms(1e4, 1.0),
    }
    assert set(find_outliers(steps, StepNorms(1.0, 1.0))) == {*(f"bad{place}" for place in range(9)), "long"}


@given(
    st.lists(st.floats(1e-3, 1e-3 * 19), min_size=2, max_size=20),
    st.lists(st.floats(1e9, math.inf) | st.just(math.nan), max_size=20),
)
def test_while_most_are_honest_none_of_them_is_left_out_and_no_other_kept(
    honest: list[float], bad: list[float]
) -> None:
    bad = bad[: len(honest) - 1]
    steps = {
        **{f"honest{place}": StepNorms(norm, 0.0) for place, norm in enumerate(honest)},
        **{f"bad{place}": StepNorms(norm, 0.0) for place, norm in enumerate(bad)},
    }
    assert set(find_outliers(steps, MODEL)) == {f"bad{place}" for place in range(len(bad))}


def steps_of(*parameters: float, statistics: float = 1.0) -> dict[str, StepNorms]:
    return {f"c{place}": StepNorms(norm, statistics) for place, norm in enumerate(parameters)}


def test_weights_are_capped_by_the_median() -> None:
    assert cap_samples([1, 5, 7, 100], 3) == [1, 5, 7, 15]
    assert cap_samples([1, 5, 7, 100], 1.5) == [1, 5, 7, 7]
    assert cap_samples([1, 5, 7, 100], None) == [1, 5, 7, 100]


def test_the_contribution_of_an_update_is_limited() -> None:
    """To twice the median weight times the median norm."""
    samples = {"c0": 100, "c1": 90, "c2": 100, "c3": 100, "c4": 300, "c5": 300, "c6": 300}
    norms = [1.0, 1.0, 1.0, 8.0, 0.5, 1.25, 8.0]
    steps = dict(zip(samples, (StepNorms(norm, min(norm, 1.0)) for norm in norms), strict=True))
    terms = ClipTerms(2.0)
    limited = limit_weights(samples, steps, clip_steps(steps, terms), terms)
    assert limited == {**samples, "c5": 160, "c6": 100}
    steps["c4"] = StepNorms(0.5, 8.0)
    assert limit_weights(samples, steps, clip_steps(steps, terms), terms)["c4"] == 100
    steps["c4"] = StepNorms(0.0, 0.0)
    assert limit_weights(samples, steps, clip_steps(steps, terms), terms)["c4"] == 300
    free = ClipTerms(max_norm=1.0)
    assert limit_weights(samples, steps, clip_steps(steps, free), free) == samples


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1),
    st.floats(1, 10),
)
def test_weights_are_not_reduced_below_the_median(
    updates: list[tuple[int, float, float]], factor: float
) -> None:
    weights = {f"c{place}": weight for place, (weight, _, _) in enumerate(updates)}
    steps = {f"c{place}": StepNorms(*norms) for place, (_, *norms) in enumerate(updates)}
    terms = ClipTerms(factor)
    limited = limit_weights(weights, steps, clip_steps(steps, terms), terms)
    median = median_low(weights.values())
    assert all(min(weight, median) <= limited[client_id] <= weight for client_id, weight in weights.items())


def test_steps_longer_than_the_factor_times_the_median_are_shortened_to_that() -> None:
    scales = clip_steps(steps_of(1.0, 1.1, 0.9, 2.2, 10.0), ClipTerms(2.0))
    assert [scale.parameters for scale in scales.values()] == pytest.approx([1, 1, 1, 1, 0.22])
    assert [scale.clips for scale in scales.values()] == [False, False, False, False, True]
    assert {scale.statistics for scale in scales.values()} == {1.0}


def test_statistics_have_a_limit_of_their_own() -> None:
    steps = {**steps_of(1.0, 1.0), "bad": StepNorms(1.0, 8.0)}
    scales = clip_steps(steps, ClipTerms(2.0))
    assert scales["bad"] == StepScales(1.0, 0.25)
    assert scales["bad"].clips
    assert not scales["c0"].clips


def test_statistics_that_only_one_client_moves_stay() -> None:
    steps = {**steps_of(1.0, 1.0, statistics=0.0), "bad": StepNorms(1.0, 8.0)}
    for past in ([], [StepNorms(1.0, 0.0)], [StepNorms(1.0, 4.0)]):
        assert clip_steps(steps, ClipTerms(2.0, past=past))["bad"] == StepScales(1.0, 0.0)


def test_without_a_factor_only_the_largest_norm_counts_and_it_shortens_the_whole_step() -> None:
    assert clip_steps(steps_of(1.0, 99.0), ClipTerms()) == {"c0": StepScales(), "c1": StepScales()}
    scales = clip_steps(steps_of(1.0, 8.0), ClipTerms(max_norm=2.0))
    assert scales == {"c0": StepScales(), "c1": StepScales(0.25, 0.25)}
    both = clip_steps(steps_of(1.0, 1.0, 8.0), ClipTerms(2.0, 0.5))
    assert both["c2"] == StepScales(0.0625, 0.0625)
    assert both["c0"] == StepScales(0.5, 0.5)


def test_a_round_of_long_steps_is_limited_by_the_past() -> None:
    past = [StepNorms(1.0, 1.0), StepNorms(1.2, 1.0), StepNorms(0.8, 1.0)]
    scales = clip_steps(steps_of(10.0, 10.0, 10.0), ClipTerms(2.0, past=past))
    assert [scale.parameters for scale in scales.values()] == pytest.approx([0.3] * 3)
    alone = clip_steps(steps_of(10.0), ClipTerms(2.0, past=past))
    assert alone["c0"].parameters == pytest.approx(0.3)
    within = clip_steps(steps_of(1.4, 1.4, 2.8), ClipTerms(2.0, past=past))
    assert not any(scale.clips for scale in within.values())


def test_steps_that_became_short_are_compared_with_each_other() -> None:
    past = [StepNorms(100.0, 100.0)]
    scales = clip_steps(steps_of(1.0, 1.0, 4.0), ClipTerms(2.0, past=past))
    assert scales["c2"].parameters == pytest.approx(0.5)


def test_limits_cannot_be_raised_step_by_step() -> None:
    """Attackers are the majority in every second round, and take all that the limits leave them."""
    past = list[StepNorms]()
    longest = 0.0
    for number in range(40):
        steps = steps_of(1.0, 1.0, 1.0) if number % 2 == 0 else steps_of(1.0, 1e6, 1e6)
        scales = clip_steps(steps, ClipTerms(2.0, past=past[-10:]))
        longest = max(longest, *(steps[step].parameters * scales[step].parameters for step in steps))
        past.append(median_norms(steps.values()))
    assert longest <= 3.0 * (1 + 1e-9)


def test_steps_that_go_nowhere_are_left_as_they_are() -> None:
    scales = clip_steps(steps_of(0.0, 0.0, 1.0, statistics=0.0), ClipTerms(2.0))
    assert set(scales.values()) == {StepScales()}
    assert median_norms([]) == StepNorms(0.0, 0.0)
