"""Everything that equal seeds make equal, as digests; run as a program, it prints them."""

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load, save_file

from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.weighted import WeightedAverage
from services.domain.tasks import PartitionScheme
from services.learning.datasets import Purpose, derive_seed, draw_partition, generate
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import build_network, parameters_of
from tests.unit.learning.digests import digest

SEED = 7


def reproduce() -> dict[str, str]:
    data = generate()
    digests = {
        "training data": digest({"inputs": data.training.inputs, "labels": data.training.labels}),
        "validation data": digest({"inputs": data.validation.inputs, "labels": data.validation.labels}),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        network = build_network(
            "paper-cnn", data.input_shape, data.classes, seed=derive_seed(SEED, Purpose.MODEL)
        )
        save_file(parameters_of(network), model)
        digests["model"] = digest(parameters_of(network))
        received = []
        for partition, scheme in enumerate(PartitionScheme):
            places = draw_partition(
                data.training.labels, data.classes, scheme, samples=40, task_seed=SEED, partition=partition
            )
            digests[f"partition {scheme}"] = digest({"places": places})
            update_locally(
                network,
                data.prepare(data.training.inputs[places], torch.device("cpu")),
                data.training.labels[places],
                Hyperparameters(epochs=1, batch_size=16, learning_rate=0.05),
                seed=derive_seed(SEED, Purpose.TRAINING, 1, partition),
                after_batch=lambda _: None,
            )
            digests[f"trained {scheme}"] = digest(parameters_of(network))
            update = Path(folder, f"update-{partition}")
            save_file(parameters_of(network), update)
            received.append(ReceivedUpdate(f"c{partition}", update, 40 + partition))
        aggregated = aggregate_updates(model, received, WeightedAverage()).model
        assert aggregated is not None
        digests["aggregated"] = digest(load(b"".join(aggregated.content())))
    return digests


if __name__ == "__main__":
    print(json.dumps(reproduce()))
