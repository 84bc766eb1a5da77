"""Random images of CIFAR-10's shape and number: only speed is measured."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

CLIENTS = 10
MOST_SAMPLES = 500
"""Of a client."""
_SEED = 20190520


def load_images(_: Path) -> tuple[TensorDataset, TensorDataset]:
    """Training and validation data, as our workers ask for a data set of one's own."""
    return _random_images(50_000), _random_images(10_000)


def load_few_images(_: Path) -> tuple[TensorDataset, TensorDataset]:
    """Next to nothing to train on and to measure on."""
    return _random_images(100), _random_images(CLIENTS)


def _random_images(count: int) -> TensorDataset:
    dice = torch.Generator().manual_seed(_SEED)
    return TensorDataset(
        torch.randint(256, (count, 3, 32, 32), generator=dice, dtype=torch.uint8),
        torch.randint(10, (count,), generator=dice),
    )


def client_images(client: int, samples: int) -> tuple[Tensor, Tensor]:
    """A client's part, ready for a network."""
    inputs, labels = _all_clients()
    first = client * MOST_SAMPLES
    return inputs[first : first + samples], labels[first : first + samples]


@cache
def _all_clients() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn(CLIENTS * MOST_SAMPLES, 3, 32, 32, generator=dice)
    return inputs, torch.randint(10, (len(inputs),), generator=dice)
