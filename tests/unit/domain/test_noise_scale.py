"""The gradient noise scale: against analytic values, with clients that undo noise, and its bounds."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from services.domain.noise_scale import (
    LEAST,
    MOST,
    NoiseEstimate,
    StepMoments,
    update_estimate,
)

NUMBERS = 200


def moments_of(steps: npt.NDArray[np.float64], before: npt.NDArray[np.float64] | None = None) -> StepMoments:
    mean = steps.mean(axis=0)
    product = None if before is None else float(mean @ before)
    return StepMoments(len(steps), float((steps**2).sum(axis=1).mean()), float(mean @ mean), product)


def standard_error(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@pytest.mark.parametrize("clients", [2, 3, 8, 40])
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_trace_and_signal_match_their_analytic_values(clients: int, noise: float) -> None:
    """Of steps g + noise: the trace is noise² · numbers, the signal |g|²."""
    rng = np.random.default_rng([clients, int(10 * noise)])
    progress = rng.normal(0, 0.2, NUMBERS)
    measured = [moments_of(progress + rng.normal(0, noise, (clients, NUMBERS))) for _ in range(2000)]
    traces, signals = [estimate.trace for estimate in measured], [estimate.signal for estimate in measured]
    assert abs(np.mean(traces) - noise**2 * NUMBERS) <= 4 * standard_error(traces)
    assert abs(np.mean(signals) - progress @ progress) <= 4 * standard_error(signals)


@pytest.mark.parametrize("undone", [0.0, 0.3, 0.9, 1.0, 1.5])
def test_progress_is_right_when_clients_undo_the_noise_of_earlier_rounds(undone: float) -> None:
    """The signal within a round is too large then, and the product of consecutive steps too small."""
    rng = np.random.default_rng(int(10 * undone))
    progress = np.full(NUMBERS, 0.05)
    noise, clients = 0.5, 4
    error, before = np.zeros(NUMBERS), None
    signals: list[float] = []
    products: list[float] = []
    for number in range(6000):
        steps = progress - undone * error + rng.normal(0, noise, (clients, NUMBERS))
        moments = moments_of(steps, before)
        before = steps.mean(axis=0)
        error = error + before - progress
        if number >= 100:
            assert moments.product is not None
            signals.append(moments.signal)
            products.append(moments.product)
    exact = float(progress @ progress)
    means = [(signal + product) / 2 for signal, product in zip(signals, products, strict=True)]
    batches = np.array(means).reshape(-1, 59).mean(axis=1).tolist()  # of rounds that depend on each other
    assert abs(np.mean(means) - exact) <= 4 * standard_error(batches)
    shift = undone / (2 - undone) * noise**2 * NUMBERS / clients
    assert np.mean(signals) - exact == pytest.approx(shift, abs=0.1 * shift + 0.1)
    assert np.mean(products) - exact == pytest.approx(-shift, abs=0.1 * shift + 0.1)


def test_independent_clients_have_their_noise_scale() -> None:
    rng = np.random.default_rng(3)
    progress = rng.normal(0, 0.2, NUMBERS)
    estimate, before, found = None, None, []
    for _ in range(600):
        steps = progress + rng.normal(0, 0.6, (10, NUMBERS))
        estimate = update_estimate(estimate, moments_of(steps, before))
        before = steps.mean(axis=0)
        assert estimate is not None
        found.append(estimate.noise_scale)
    assert np.median(found[50:]) == pytest.approx(0.36 * NUMBERS / (progress @ progress), rel=0.1)


def test_estimates_are_averaged_with_weight_0_3() -> None:
    first = update_estimate(None, StepMoments(2, 3.0, 2.0))
    assert first == NoiseEstimate(trace=2.0, signal=1.0)
    second = update_estimate(first, StepMoments(2, 5.0, 3.0, 0.5))
    assert second == NoiseEstimate(0.7 * 2 + 0.3 * 4, 0.7 + 0.3, 0.5)
    third = update_estimate(second, StepMoments(2, 5.0, 3.0, 1.5))
    assert third is not None
    assert third.product == pytest.approx(0.7 * 0.5 + 0.3 * 1.5)
    assert update_estimate(third, StepMoments(2, 5.0, 3.0)) == NoiseEstimate(
        0.7 * third.trace + 0.3 * 4, 0.7 * third.signal + 0.3, third.product
    )


@pytest.mark.parametrize(
    "moments",
    [
        StepMoments(1, 4.0, 4.0, 1.0),
        StepMoments(0, 0.0, 0.0),
        StepMoments(3, math.inf, 1.0),
        StepMoments(3, 4.0, 1.0, math.nan),
    ],
)
def test_rounds_that_tell_nothing_change_nothing(moments: StepMoments) -> None:
    before = NoiseEstimate(2.0, 1.0, 0.5)
    assert update_estimate(before, moments) == before
    assert update_estimate(None, moments) is None


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (NoiseEstimate(8.0, 2.0), 4.0),
        (NoiseEstimate(8.0, 2.0, 1.2), 5.0),
        (NoiseEstimate(8.0, 2.0, -3.0), MOST),
        (NoiseEstimate(8.0, 0.0), MOST),
        (NoiseEstimate(8.0, 1e-9), MOST),
        (NoiseEstimate(0.0, 1.0), LEAST),
        (NoiseEstimate(0.0, 0.0), MOST),
    ],
)
def test_noise_scale_is_bounded(estimate: NoiseEstimate, expected: float) -> None:
    assert estimate.noise_scale == pytest.approx(expected)
