"""Federated averaging written down plainly, in one process: what the service has to come to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from services.domain.tasks import PartitionScheme
from services.learning.datasets import load_dataset
from services.learning.networks import build_network
from services.learning.partition import draw_partition
from services.learning.samples import DataSet
from services.learning.seeds import Purpose, derive_seed


@dataclass(frozen=True)
class Learning:
    """The terms of a task that decide what is learnt."""

    seed: int
    learning_rate: float
    learning_rate_decay: float
    local_epochs: int
    batch_size: int


@cache
def train_plainly(rounds: Sequence[Sequence[tuple[int, int]]], terms: Learning) -> dict[str, Tensor]:
    """The global model after these rounds, each given as its devices' partitions and sample counts."""
    torch.set_num_threads(1)  # more add up in another order
    data = load_dataset("generated", Path())
    network = build_network("paper-cnn", data.input_shape, 10, seed=derive_seed(terms.seed, Purpose.MODEL))
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for number, devices in enumerate(rounds, 1):
        total = sum(samples for _, samples in devices)
        summed = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in model.items()}
        for partition, samples in devices:
            network.load_state_dict(model)
            _train_device(network, data, number, partition, samples, terms)
            for name, tensor in network.state_dict().items():
                summed[name] += tensor.to(torch.float64) * samples
        model = {name: _like(tensor, summed[name] / total) for name, tensor in model.items()}
    return model


def _train_device(
    network: nn.Module, data: DataSet, number: int, partition: int, samples: int, terms: Learning
) -> None:
    places = draw_partition(
        data.training.labels,
        10,
        PartitionScheme.IID,
        samples=samples,
        task_seed=terms.seed,
        partition=partition,
    )
    inputs = data.prepare(data.training.inputs[places], torch.device("cpu"))
    labels = data.training.labels[places]
    rate = terms.learning_rate * terms.learning_rate_decay ** (number - 1)
    torch.manual_seed(derive_seed(terms.seed, Purpose.TRAINING, number, partition))
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    network.train()
    for _ in range(terms.local_epochs):
        for chosen in torch.tensor_split(torch.randperm(samples), -(-samples // terms.batch_size)):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(network(inputs[chosen]), labels[chosen]))
            optimizer.step()


def _like(tensor: Tensor, mean: Tensor) -> Tensor:
    return mean.to(tensor.dtype) if tensor.is_floating_point() else mean.round().to(tensor.dtype)
