"""What aggregation measures of the clients' steps, against plain numpy."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from services.aggregators import AGGREGATORS, make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, State, aggregate_updates
from services.aggregators.weighted import WeightedAverage
from services.domain.noise_scale import NoiseEstimate, update_estimate


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


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_the_noise_scale_does_not_depend_on_the_aggregator(name: str, tmp_path: Path) -> None:
    """Clients' steps have a noise of 36 times the squared progress, whatever is made of them."""
    rng = np.random.default_rng(1)
    numbers, clients, noise_scale = 20_000, 6, 36.0
    progress = rng.normal(0, 1e-3, numbers)
    spread = np.sqrt(noise_scale * float(progress @ progress) / numbers)
    versions = [tmp_path / "0"]
    versions[0].write_bytes(save({"weight": np.zeros(numbers, np.float32)}))
    aggregator = make_aggregator(name, {})
    estimate: NoiseEstimate | None = None
    state: State | None = None
    for number in range(1, 6):
        model = load_file(versions[-1])["weight"]
        updates = []
        for client in range(clients):
            step = progress + rng.normal(0, spread, numbers)
            path = tmp_path / f"update-{client}"
            path.write_bytes(save({"weight": (model + step).astype(np.float32)}))
            updates.append(ReceivedUpdate(str(client), path, 100))
        previous = versions[-2] if len(versions) > 1 else None
        made = aggregate_updates(versions[-1], updates, aggregator, state=state, previous=previous)
        assert made.model is not None
        assert made.record.moments is not None
        state = made.state
        estimate = update_estimate(estimate, made.record.moments)
        versions.append(tmp_path / str(number))
        versions[-1].write_bytes(b"".join(made.model.content()))
    assert estimate is not None
    assert estimate.noise_scale == pytest.approx(noise_scale, rel=0.25)
