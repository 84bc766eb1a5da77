"""Malicious clients among ten, as in ``benchmarks.poisoning``, on steps that need no training."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from services.aggregators import make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.weighted import WeightedAverage
from services.domain.clipping import ClipTerms
from tests.unit.aggregators.model_files import VARIANCE, ModelFiles, loaded, small_model

DIRECTION = torch.ones(6, 5)


def honest(files: ModelFiles, number: int = 9) -> list[ReceivedUpdate]:
    """Steps of about the same length in about the same direction."""
    generator = torch.Generator().manual_seed(1)
    return [
        files.step(
            f"c{place}",
            100,
            fc__weight=DIRECTION + torch.randn(6, 5, generator=generator) / 4,
            bn__running_var=torch.rand(6, generator=generator) / 10,
        )
        for place in range(number)
    ]


def aggregated(files: ModelFiles, bad: ReceivedUpdate, factor: float | None) -> dict[str, Tensor]:
    clipping = ClipTerms(factor)
    done = aggregate_updates(files.model, [*honest(files), bad], WeightedAverage(), clipping=clipping)
    assert done.record.outliers == {}
    return loaded(done.model)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, small_model())


@pytest.mark.parametrize("data_samples", [100, 10**9])
@pytest.mark.parametrize("times", [-1, -5, -15])
def test_a_step_against_all_others_slows_the_model_down_and_no_more(
    files: ModelFiles, times: int, data_samples: int
) -> None:
    bad = files.step("bad", data_samples, fc__weight=times * DIRECTION)
    moved = aggregated(files, bad, 2.0)["fc.weight"] - files.tensors["fc.weight"]
    assert float((moved * DIRECTION).mean()) > 0.6
    if times == -15:
        unclipped = aggregated(files, bad, None)["fc.weight"] - files.tensors["fc.weight"]
        assert float((unclipped * DIRECTION).mean()) < -0.5


def test_the_weight_of_a_clipped_step_is_at_most_the_median(files: ModelFiles) -> None:
    attacks: list[dict[str, Tensor | float]] = [
        {"fc__weight": -15 * DIRECTION},
        {"fc__weight": DIRECTION, "bn__running_var": 100.0},
        {"fc__weight": DIRECTION},
    ]
    weights = []
    for attack in attacks:
        bad = files.step("bad", 10**9, **attack)
        clipping = ClipTerms(2.0)
        record = aggregate_updates(
            files.model, [*honest(files), bad], WeightedAverage(), clipping=clipping
        ).record
        weights.append(record.influences["bad"].weight)
    assert weights[:2] == [100, 100]
    assert 180 < weights[2] < 220  # its contribution is twice the median


def test_inflated_variances_are_clipped_apart_from_the_parameters(files: ModelFiles) -> None:
    bad = files.step("bad", 100, fc__weight=DIRECTION, bn__running_var=100.0)
    tensors = aggregated(files, bad, 2.0)
    assert float((tensors[VARIANCE] - files.tensors[VARIANCE]).max()) < 0.2
    assert float((tensors["fc.weight"] - files.tensors["fc.weight"]).mean()) == pytest.approx(1, abs=0.1)
    assert float((aggregated(files, bad, None)[VARIANCE] - files.tensors[VARIANCE]).min()) > 9


def test_variances_do_not_fall_below_a_hundredth_of_the_models(files: ModelFiles) -> None:
    bad = files.step("bad", 100, bn__running_var=-files.tensors[VARIANCE])
    bounded = aggregate_updates(files.model, [bad], WeightedAverage(), clipping=ClipTerms(2.0))
    torch.testing.assert_close(loaded(bounded.model)[VARIANCE], files.tensors[VARIANCE] / 100)
    free = aggregate_updates(files.model, [bad], WeightedAverage())
    assert loaded(free.model)[VARIANCE].tolist() == [0.0] * 6


ROBUST: dict[str, dict[str, object]] = {
    "median": {},
    "trimmed-mean": {"trim": 0.3},
    "krum": {"byzantine": 3},
    "multi-krum": {"byzantine": 3},
}


def furthest(
    files: ModelFiles, rule: str, parameters: dict[str, object], malicious: int, times: int
) -> float:
    """How far a number moves beyond all honest clients, without clipping, after the worse of two attacks."""
    good = honest(files, 10 - malicious)
    steps = [
        loaded_update[name] - files.tensors[name]
        for loaded_update in (load_file(update.path) for update in good)
        for name in ("fc.weight", VARIANCE)
    ]
    weights, variances = torch.stack(steps[::2]), torch.stack(steps[1::2])
    beyond = 0.0
    for attack in ({"fc__weight": times * DIRECTION}, {"fc__weight": DIRECTION, "bn__running_var": 100.0}):
        bad = [files.step(f"bad{place}", 100, **attack) for place in range(malicious)]
        done = aggregate_updates(files.model, [*bad, *good], make_aggregator(rule, parameters))
        assert done.record.outliers == {}
        made = loaded(done.model)
        for name, honest_steps in (("fc.weight", weights), (VARIANCE, variances)):
            moved = made[name] - files.tensors[name]
            low, high = honest_steps.min(0).values, honest_steps.max(0).values
            beyond = max(beyond, float((low - moved).max()), float((moved - high).max()))
    return beyond


@pytest.mark.parametrize("times", [-5, -15])
@pytest.mark.parametrize("malicious", [1, 2, 3])
@pytest.mark.parametrize("rule", ROBUST)
def test_robust_rules_stay_within_the_honest_steps(
    files: ModelFiles, rule: str, malicious: int, times: int
) -> None:
    assert furthest(files, rule, ROBUST[rule], malicious, times) <= 1e-5


@pytest.mark.parametrize(
    ("rule", "parameters"), [("weighted", {}), ("trimmed-mean", {"trim": 0.2}), ("server-momentum", {})]
)
def test_others_do_not_nor_do_rules_with_more_malicious_clients_than_they_allow(
    files: ModelFiles, rule: str, parameters: dict[str, object]
) -> None:
    assert furthest(files, rule, parameters, 3, -15) > 0.3
