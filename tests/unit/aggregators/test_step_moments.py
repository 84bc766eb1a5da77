"""What aggregation measures of the clients' steps, against plain numpy."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.weighted import WeightedAverage


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_moments_are_those_of_the_parameters(clients: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(clients)

    def draw(scale: float) -> dict[str, np.ndarray]:
        return {
            "weight": rng.normal(0, scale, (300, 250)).astype("f4"),
            "norm.running_mean": rng.normal(0, scale, 250).astype("f4"),
        }

    previous, model = draw(1.0), draw(1.0)
    trained = [
        {name: array + step for (name, array), step in zip(model.items(), draw(0.1).values(), strict=True)}
        for _ in range(clients)
    ]
    (tmp_path / "previous").write_bytes(save(previous))
    (tmp_path / "model").write_bytes(save(model))
    for number, update in enumerate(trained):
        (tmp_path / str(number)).write_bytes(save(update))
    made = aggregate_updates(
        tmp_path / "model",
        [
            ReceivedUpdate(str(number), tmp_path / str(number), 100 * (number + 1))
            for number in range(clients)
        ],
        WeightedAverage(),
        previous=tmp_path / "previous",
    )
    moments = made.record.moments
    assert moments is not None
    steps = np.array([update["weight"] - model["weight"] for update in trained], np.float64)
    mean = steps.mean(axis=0)
    assert moments.clients == clients
    assert moments.mean_square == pytest.approx((steps**2).sum(axis=(1, 2)).mean(), rel=1e-5)
    assert moments.square_of_mean == pytest.approx((mean**2).sum(), rel=1e-5)
    last_step = model["weight"].astype(np.float64) - previous["weight"]
    assert moments.product == pytest.approx((mean * last_step).sum(), rel=1e-3)
