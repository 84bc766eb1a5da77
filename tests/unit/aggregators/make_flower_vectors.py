"""Makes ``flower_vectors.json``: what each rule of Flower 1.41 makes of the same updates.

Flower does not go with our packages, so it has its own environment:

python -m venv flower && flower/bin/pip install flwr==1.41.*
flower/bin/python tests/unit/aggregators/make_flower_vectors.py
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg, FedYogi, Krum
from flwr.supercore.task_identity import TaskIdentity

Arrays = Mapping[str, npt.NDArray[np.float32]]

_FILE = Path(__file__).with_name("flower_vectors.json")
_SAMPLES = [20, 25, 30, 35, 40, 45, 50]
_ROUNDS = 3
_SHAPES = {"fc.weight": (3, 4), "fc.bias": (4,)}


def main() -> None:
    """Write inputs and outputs. Updates have three decimal places and do not depend on the model."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages have them
    rng = np.random.default_rng(23)
    model = _drawn(rng, _zeros(), 1.0)
    updates = []
    for _ in range(_ROUNDS):
        goal = _drawn(rng, model, 0.2)
        updates.append([_drawn(rng, goal, 0.1) for _ in _SAMPLES])
    strategies = {
        "median": (FedMedian(), {}),
        "trimmed-mean": (FedTrimmedAvg(beta=0.2), {"trim": 0.2}),
        "krum": (Krum(num_malicious_nodes=2), {"byzantine": 2}),
        "server-momentum": (
            FedAvgM(server_learning_rate=0.8, server_momentum=0.7),
            {"learning_rate": 0.8, "momentum": 0.7},
        ),
        "fedadam": (
            FedAdam(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01),
            {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01},
        ),
        "fedyogi": (
            FedYogi(eta=0.05, beta_1=0.8, beta_2=0.95, tau=0.01),
            {"learning_rate": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01},
        ),
    }
    rules = {
        name: {
            "parameters": parameters,
            "models": [_listed(made) for made in _models(strategy, model, updates)],
        }
        for name, (strategy, parameters) in strategies.items()
    }
    vectors = {
        "samples": _SAMPLES,
        "model": _listed(model),
        "updates": [[_listed(update) for update in of_round] for of_round in updates],
        "rules": rules,
    }
    _FILE.write_text(json.dumps(vectors, separators=(",", ":")) + "\n")


def _models(strategy: FedAvg, model: Arrays, updates: list[list[Arrays]]) -> list[Arrays]:
    """The model after each round, as ``strategy.start`` would make them."""
    models: list[Arrays] = []
    for number, of_round in enumerate(updates, 1):
        if isinstance(strategy, FedAvgM):
            strategy.current_arrays = _record(model)
        elif hasattr(strategy, "current_arrays"):
            strategy.current_arrays = dict(model)
        arrays, _ = strategy.aggregate_train(number, list(map(_reply, of_round, _SAMPLES)))
        model = {name: array.numpy().astype(np.float32) for name, array in arrays.items()}
        models.append(model)
    return models


def _reply(update: Arrays, samples: int) -> Message:
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = RecordDict({"arrays": _record(update), "metrics": MetricRecord({"num-examples": samples})})
    return Message(content, reply_to=asked)


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _zeros() -> Arrays:
    return {name: np.zeros(shape, np.float32) for name, shape in _SHAPES.items()}


def _drawn(rng: np.random.Generator, center: Arrays, spread: float) -> Arrays:
    return {
        name: np.round(array + rng.normal(0, spread, array.shape), 3).astype(np.float32)
        for name, array in center.items()
    }


def _listed(arrays: Arrays) -> dict[str, list[float]]:
    """As text that single precision needs, to be read back exactly."""
    return {name: [float(str(number)) for number in array.ravel()] for name, array in arrays.items()}


if __name__ == "__main__":
    main()
