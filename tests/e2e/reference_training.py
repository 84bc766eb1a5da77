"""Federated averaging written down plainly, in one process: what the service has to come to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from services.domain.tasks import PartitionScheme
from services.learning.datasets import DataSet, Purpose, derive_seed, draw_partition, load_dataset
from services.learning.networks import build_network


@dataclass(frozen=True)
class Learning:
    """The terms of a task that decide what is learnt."""

    seed: int
    learning_rate: float
    learning_rate_decay: float
    local_epochs: int
    batch_size: int
    model: str = "paper-cnn"
    gradient_clip_norm: float | None = None
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    calibrated_loss: bool = False


@cache
def train_plainly(rounds: Sequence[Sequence[tuple[int, int]]], terms: Learning) -> dict[str, Tensor]:
    """The global model after these rounds, each given as its devices' partitions and sample counts."""
    torch.set_num_threads(1)  # more add up in another order
    data = load_dataset("generated", Path())
    network = build_network(terms.model, data.input_shape, 10, seed=derive_seed(terms.seed, Purpose.MODEL))
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
    optimizer = torch.optim.SGD(
        network.parameters(), lr=rate, momentum=terms.local_momentum, weight_decay=terms.weight_decay
    )
    start = [parameter.detach().clone() for parameter in network.parameters()]
    shares = torch.tensor([(1 + int((labels == label).sum())) / (samples + 10) for label in range(10)])
    shift = shares.log() if terms.calibrated_loss else torch.zeros(10)
    network.train()
    for _ in range(terms.local_epochs):
        for chosen in torch.tensor_split(torch.randperm(samples), -(-samples // terms.batch_size)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs[chosen]) + shift, labels[chosen])
            for parameter, received in zip(network.parameters(), start, strict=True):
                loss = loss + terms.proximal_mu / 2 * ((parameter - received) ** 2).sum()
            torch.autograd.backward(loss)
            if terms.gradient_clip_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), terms.gradient_clip_norm)
            optimizer.step()


def _like(tensor: Tensor, mean: Tensor) -> Tensor:
    return mean.to(tensor.dtype) if tensor.is_floating_point() else mean.round().to(tensor.dtype)
