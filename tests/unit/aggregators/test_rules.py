"""The aggregators beside the averages: what they make of updates, of statistics and of whole numbers."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, load_file, save_file

from services.aggregators import AGGREGATORS, make_aggregator
from services.aggregators.aggregation import Aggregated, Aggregator, ReceivedUpdate, State, aggregate_updates
from services.aggregators.fedadam import FedAdam
from services.aggregators.fedyogi import FedYogi
from services.aggregators.krum import Krum
from services.aggregators.median import Median
from services.aggregators.multi_krum import MultiKrum
from services.aggregators.server_momentum import ServerMomentum
from services.aggregators.trimmed_mean import TrimmedMean
from services.domain.clipping import ClipTerms
from services.domain.parameters import ParameterError
from tests.unit.aggregators.flower_vectors import MODEL, MODELS, PARAMETERS, SAMPLES, UPDATES, assert_same
from tests.unit.aggregators.model_files import COUNTER, MEAN, VARIANCE, ModelFiles, loaded, small_model
from tests.unit.learning.digests import digest

OPTIMIZERS: list[type[Aggregator]] = [ServerMomentum, FedAdam, FedYogi]
ROBUST: list[type[Aggregator]] = [Median, TrimmedMean, Krum, MultiKrum]


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, small_model())


def of_numbers(folder: Path, numbers: list[list[float]], model: list[float] | None = None) -> ModelFiles:
    """A model of one tensor, by default of ones."""
    return ModelFiles(folder, {"fc": torch.tensor(model or [1.0] * len(numbers[0]))})


def made_of(files: ModelFiles, numbers: list[list[float]], aggregator: Aggregator) -> list[float]:
    received = [files.update(str(place), {"fc": torch.tensor(row)}) for place, row in enumerate(numbers)]
    numbers_made: list[float] = loaded(aggregate_updates(files.model, received, aggregator).model)[
        "fc"
    ].tolist()
    return numbers_made


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_flower(name: str, tmp_path: Path) -> None:
    model, state = tmp_path / "model", tmp_path / "state"
    save_file(MODEL, model)
    for of_round, expected in zip(UPDATES, MODELS[name], strict=True):
        received = []
        for place, (update, samples) in enumerate(zip(of_round, SAMPLES, strict=True)):
            path = tmp_path / f"update-{place}"
            save_file(update, path)
            received.append(ReceivedUpdate(str(place), path, samples))
        aggregated = aggregate_updates(
            model,
            received,
            make_aggregator(name, PARAMETERS[name]),
            state=load_file(state) if state.exists() else None,
        )
        assert aggregated.model is not None
        content = b"".join(aggregated.model.content())
        assert_same(load(content), expected)
        model.write_bytes(content)
        if aggregated.state is not None:
            save_file(dict(aggregated.state), state)
    assert state.exists() == (name in {"server-momentum", "fedadam", "fedyogi"})


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 1500), st.floats(0, 0.49), st.integers(0, 1000))
def test_median_and_trimmed_mean_are_those_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, clients: int, size: int, trim: float, seed: int
) -> None:
    values = 1 + np.random.default_rng(seed).uniform(-0.5, 0.5, (clients, size)).astype(np.float32)
    files = ModelFiles(tmp_path_factory.mktemp("numbers"), {"fc": torch.ones(size)})
    cut = int(trim * clients)
    middle = np.sort(values, axis=0)[cut : clients - cut]
    for aggregator, expected in (
        (Median(), np.median(values, axis=0)),
        (TrimmedMean(trim=trim), middle.mean(axis=0)),
    ):
        np.testing.assert_allclose(made_of(files, values.tolist(), aggregator), expected, rtol=0, atol=1e-6)


def test_so_many_clients_cannot_move_the_median_beyond_the_others(tmp_path: Path) -> None:
    honest = [[1.0, 2.0], [1.1, 2.2], [1.2, 2.4]]
    files = of_numbers(tmp_path, honest)
    assert made_of(files, [*honest, [9.0, -9.0], [9.0, -9.0]], Median()) == pytest.approx([1.2, 2.0])
    five = [*honest, [1.3, 2.6], [9.0, -9.0]]
    assert made_of(files, five, TrimmedMean(trim=0.2)) == pytest.approx([1.2, 2.2])
    assert made_of(files, five, TrimmedMean(trim=0.0)) == pytest.approx([2.72, 0.04], abs=1e-6)


def test_krum_takes_one_of_the_honest_updates_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    honest = [(1 + torch.randn(50, generator=generator) / 10).tolist() for _ in range(6)]
    malicious = [(3 + torch.randn(50, generator=generator) / 100).tolist() for _ in range(3)]
    files = of_numbers(tmp_path, honest)
    assert made_of(files, [*malicious, *honest], Krum(byzantine=3)) in honest
    averaged = made_of(files, [*malicious, *honest], MultiKrum(byzantine=3))
    subsets = [np.mean(chosen, axis=0) for chosen in itertools.combinations(honest, 4)]
    assert any(np.allclose(averaged, subset, rtol=0, atol=1e-6) for subset in subsets)


def test_as_many_as_f_do_not_suffice_to_be_nearest_and_more_do(tmp_path: Path) -> None:
    """Colluding clients that send the same are no farther from each other than 0."""
    honest = [[1.0, 1.3], [1.2, 1.0], [0.8, 1.1], [1.1, 0.8], [0.9, 0.9]]
    bad = [3.0, 3.0]
    files = of_numbers(tmp_path, honest)
    assert made_of(files, [*honest, bad, bad], Krum(byzantine=2)) != bad
    assert made_of(files, [*honest, bad, bad, bad, bad, bad], Krum(byzantine=2)) == bad


def test_krum_sees_statistics_and_parameters_in_units_of_their_own(files: ModelFiles) -> None:
    """Statistics with a far larger magnitude hide no parameters, nor the reverse."""
    for bias, variance in ((2.0, 0.0), (0.0, 60.0)):
        received = []
        for place in range(7):
            generator = torch.Generator().manual_seed(place)
            malicious = place in {0, 3}
            received.append(
                files.step(
                    f"c{place}",
                    fc__bias=torch.randn(6, generator=generator) / 10 + bias * malicious,
                    bn__running_mean=5 + 3 * torch.randn(6, generator=generator),
                    bn__running_var=variance * malicious,
                )
            )
        aggregated = aggregate_updates(files.model, received, MultiKrum(byzantine=2))
        made = loaded(aggregated.model)
        honest = [load_file(received[place].path) for place in (1, 2, 4, 5, 6)]
        subsets = itertools.combinations(honest, 3)
        assert any(
            all(
                np.allclose(
                    np.mean([update[name] for update in chosen], axis=0), made[name].numpy(), atol=1e-5
                )
                for name in ("fc.bias", MEAN, VARIANCE)
            )
            for chosen in subsets
        )


def test_counters_do_not_count_in_distances(files: ModelFiles) -> None:
    moves = [0.0, 0.1, 0.22, 0.4, 0.9]
    received = [
        files.step(str(place), fc__bias=move, bn__num_batches_tracked=1000.0 * (place == 1))
        for place, move in enumerate(moves)
    ]
    made = loaded(aggregate_updates(files.model, received, Krum(byzantine=1)).model)
    assert made[COUNTER].item() == 1010  # the nearest to its two neighbours is client 1
    torch.testing.assert_close(made["fc.bias"], files.tensors["fc.bias"] + 0.1)


@pytest.mark.parametrize("kind", [Krum, MultiKrum])
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_what_is_left_of_a_round_can_be_few(files: ModelFiles, kind: type[Krum], clients: int) -> None:
    """After outliers; with fewer than ``min_updates`` the round fails afterwards."""
    received = [files.step(str(place), fc__bias=0.1) for place in range(clients)]
    made = loaded(aggregate_updates(files.model, received, kind(byzantine=4)).model)
    torch.testing.assert_close(made["fc.bias"], files.tensors["fc.bias"] + 0.1)


@pytest.mark.parametrize(
    ("kind", "counter", "step"),
    [(Median, 13, 0.2), (TrimmedMean, 13, 0.61 / 3), (Krum, 13, 0.2), (MultiKrum, 12, 0.16)],
)
def test_whole_numbers_and_statistics_follow_the_rule(
    files: ModelFiles, kind: type[Aggregator], counter: int, step: float
) -> None:
    received = [
        files.step(str(place), fc__bias=move, bn__running_var=move, bn__num_batches_tracked=place + 1.0)
        for place, move in enumerate([0.0, 0.12, 0.2, 0.29, 0.45])
    ]
    aggregated = aggregate_updates(files.model, received, kind())
    made = loaded(aggregated.model)
    assert made[COUNTER].item() == counter
    assert made[COUNTER].dtype == torch.int64
    torch.testing.assert_close(made[VARIANCE] - files.tensors[VARIANCE], torch.full((6,), step))
    torch.testing.assert_close(made["fc.bias"] - files.tensors["fc.bias"], torch.full((6,), step))
    assert {item.weight for item in aggregated.record.influences.values()} == {1}


def step_all(files: ModelFiles, state: State | None, kind: type[Aggregator]) -> Aggregated:
    received = [
        files.step(
            "a", 10, fc__bias=0.1, bn__running_var=-0.4, bn__running_mean=1.0, bn__num_batches_tracked=2
        ),
        files.step("b", 30, fc__bias=0.5, bn__running_var=-0.2, bn__num_batches_tracked=6),
    ]
    return aggregate_updates(files.model, received, kind(), state=state)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_only_parameters_are_optimized_and_all_else_is_averaged(
    files: ModelFiles, kind: type[Aggregator]
) -> None:
    first = step_all(files, None, kind)
    second = step_all(files, first.state, kind)
    assert first.state is not None
    for name in (MEAN, VARIANCE, COUNTER):
        assert torch.equal(loaded(first.model)[name], loaded(second.model)[name])
    torch.testing.assert_close(loaded(second.model)[VARIANCE], files.tensors[VARIANCE] - 0.25)
    assert loaded(second.model)[COUNTER].item() == 15
    moved = [
        (loaded(made.model)["fc.bias"] - files.tensors["fc.bias"]).mean().item() for made in (first, second)
    ]
    assert 0 < moved[0] < moved[1]
    sizes = {name: array.shape for name, array in first.state.items()}
    assert sizes.pop("rounds") == ()
    assert set(sizes.values()) == {(6 * 5 + 6 + 1,)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_is_not_changed_and_gives_the_same_model_again(
    files: ModelFiles, kind: type[Aggregator]
) -> None:
    state = step_all(files, None, kind).state
    assert state is not None
    before = {name: array.copy() for name, array in state.items()}
    results = [step_all(files, state, kind) for _ in range(2)]
    assert len({digest(loaded(made.model)) for made in results}) == 1
    for name, array in before.items():
        assert np.array_equal(array, state[name])
        assert not np.array_equal(array, (results[0].state or {})[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [*OPTIMIZERS, *ROBUST])
def test_floats_of_other_widths_are_aggregated(
    tmp_path: Path, dtype: torch.dtype, kind: type[Aggregator]
) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.ones(5, dtype=dtype), "table": torch.arange(4)})
    received = [files.step(str(place), fc=0.5, table=2.0) for place in range(5)]
    made = loaded(aggregate_updates(files.model, received, kind()).model)
    assert made["fc"].dtype == dtype
    assert made["table"].tolist() == [2, 3, 4, 5]
    if kind not in {FedAdam, FedYogi}:
        assert made["fc"].tolist() == [1.5] * 5


@pytest.mark.parametrize("kind", AGGREGATORS.values())
def test_long_steps_are_clipped_before_each(files: ModelFiles, kind: type[Aggregator]) -> None:
    """With all steps clipped to the same, only that counts."""
    steps = [1.0, 2.0, 4.0, 2.0, 3.0]
    long = [files.step(f"l{place}", fc__bias=step) for place, step in enumerate(steps)]
    clipped = aggregate_updates(files.model, long, kind(), clipping=ClipTerms(max_norm=0.1))
    short = [files.step(f"s{place}", fc__bias=0.1 / 6**0.5) for place in range(5)]
    expected = aggregate_updates(files.model, short, kind())
    torch.testing.assert_close(
        loaded(clipped.model)["fc.bias"], loaded(expected.model)["fc.bias"], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "parameter", "good", "bad"),
    [
        ("trimmed-mean", "trim", [0, 0.49], [0.5, -0.01, None]),
        ("krum", "byzantine", [0, 7], [-1, 1.5, True, 1001]),
        ("multi-krum", "byzantine", [0, 7], [-1, "1"]),
        ("server-momentum", "momentum", [0, 0.99], [1, -0.1]),
        ("server-momentum", "learning_rate", [1e-6, 100], [0, 101]),
        ("fedadam", "beta_1", [0, 0.99], [1, -0.1]),
        ("fedadam", "beta_2", [0, 0.99], [1, -0.1]),
        ("fedadam", "tau", [1e-9, 100], [0, -1e-3]),
        ("fedyogi", "learning_rate", [1e-6, 100], [0, 101]),
        ("fedyogi", "weight_cap_factor", [1, None], [0.9]),
    ],
)
def test_parameters_have_limits(name: str, parameter: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert getattr(make_aggregator(name, {parameter: value}), parameter) == value
    for value in bad:
        with pytest.raises(ParameterError, match=f"{parameter}: must be"):
            make_aggregator(name, {parameter: value})


def test_krum_needs_more_updates_the_more_clients_may_be_malicious() -> None:
    assert [Krum(byzantine=count).min_updates for count in (0, 1, 2)] == [3, 5, 7]
    others = {name for name, kind in AGGREGATORS.items() if not issubclass(kind, Krum)}
    assert {make_aggregator(name, {}).min_updates for name in others} == {1}
