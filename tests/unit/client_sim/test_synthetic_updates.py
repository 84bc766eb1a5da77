from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save
from safetensors.torch import save as save_torch

from client_sim.scenario import MIN_MODEL_BYTES
from client_sim.synthetic_updates import SyntheticUpdateError, SyntheticUpdates, synthetic_model
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.weighted import WeightedAverage
from services.learning.networks import build_network, parameters_of
from services.tensors.layout import check_finite, check_same_layout, read_layout


def paper_model() -> bytes:
    return save_torch(parameters_of(build_network("paper-cnn", (1, 16, 16), 10, seed=0)))


MODELS = {
    "synthetic": synthetic_model(100_000, 0),
    "paper-cnn": paper_model(),
    "zeros": save({"weight": np.zeros((64, 32), np.float32), "bias": np.zeros(64, np.float32)}),
    "two numbers": save({"w": np.array([1.0, -3.0], np.float64)}, {"made": "by hand"}),
    "half precision": save({"w": np.full(500, 3.0, np.float16), "steps": np.array([7])}),
    "mostly statistics": save({"w": np.ones(9, np.float32), "running_var": np.zeros(99, np.float32)}),
}


@pytest.mark.parametrize("model_bytes", [MIN_MODEL_BYTES, 4321, 1_000_000])
def test_a_model_of_so_many_bytes(model_bytes: int, tmp_path: Path) -> None:
    model = synthetic_model(model_bytes, seed=1)
    assert len(model) == model_bytes // 8 * 8
    path = tmp_path / "model"
    path.write_bytes(model)
    check_finite(path)
    assert {spec.dtype for spec in read_layout(path).values()} == {"F32"}
    assert len(load(model)) == 4
    assert synthetic_model(model_bytes, seed=1) == model
    assert synthetic_model(model_bytes, seed=2) != model


@pytest.mark.parametrize("name", MODELS)
def test_updates_keep_the_layout_and_are_as_many_as_devices(name: str, tmp_path: Path) -> None:
    updates = SyntheticUpdates(MODELS[name])
    given = [updates.of(number) for number in range(50)]
    assert len({MODELS[name], *given}) == 51
    assert SyntheticUpdates(MODELS[name]).of(7) == given[7]
    model, update = tmp_path / "model", tmp_path / "update"
    model.write_bytes(MODELS[name])
    update.write_bytes(given[7])
    check_same_layout(read_layout(update), read_layout(model))
    check_finite(update)
    before, after = load(MODELS[name]), load(given[7])
    moved = {tensor for tensor, values in after.items() if not np.array_equal(values, before[tensor])}
    assert len(moved) == 1
    assert not moved & {"steps", "running_var"}


@pytest.mark.parametrize("clients", [1, 2, 9])
@pytest.mark.parametrize("name", MODELS)
def test_the_aggregation_keeps_all_of_them(name: str, clients: int, tmp_path: Path) -> None:
    updates = SyntheticUpdates(MODELS[name])
    assert left_out(MODELS[name], [updates.of(number) for number in range(clients)], tmp_path) == {}


def test_beside_updates_that_were_trained_none_stands_out(tmp_path: Path) -> None:
    model = paper_model()
    updates = SyntheticUpdates(model)
    rng = np.random.default_rng(0)
    trained = {
        name: values
        if values.dtype.kind == "i"
        else values * rng.uniform(0.5, 1.5, values.shape).astype(np.float32)
        for name, values in load(model).items()
    }
    given = [*(updates.of(number) for number in range(5)), save(trained)]
    assert left_out(model, given, tmp_path) == {}
    assert left_out(model, [save(trained), save(trained), updates.of(0)], tmp_path) == {}


def left_out(model: bytes, updates: list[bytes], folder: Path) -> dict[str, str]:
    model_path = folder / "model"
    model_path.write_bytes(model)
    received = []
    for number, update in enumerate(updates):
        path = folder / f"update-{number}"
        path.write_bytes(update)
        received.append(ReceivedUpdate(str(number), path, 100))
    aggregated = aggregate_updates(model_path, received, WeightedAverage())
    assert aggregated.model is not None
    tensors = load(b"".join(aggregated.model.content()))
    assert all(np.isfinite(values).all() for values in tensors.values())
    return dict(aggregated.record.outliers)


@pytest.mark.parametrize("values", [np.arange(9), np.ones(1, np.float32), np.ones((0, 5), np.float32)])
def test_a_model_without_numbers_to_move_is_refused(values: npt.NDArray[np.generic]) -> None:
    with pytest.raises(SyntheticUpdateError, match="no tensor of two or more numbers of type F16, F32, F64"):
        SyntheticUpdates(save({"w": values}))
