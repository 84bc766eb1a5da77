"""Random images with the shape and number of CIFAR-10."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

CLIENTS = 10
MAX_SAMPLES = 500
"""Of a client."""
_SEED = 20190520


def load_images(_: Path) -> tuple[TensorDataset, TensorDataset]:
    """Training and validation data, for our workers."""
    return _random_images(50_000), _random_images(10_000)


def load_few_images(_: Path) -> tuple[TensorDataset, TensorDataset]:
    """A minimal data set, to measure overhead."""
    return _random_images(100), _random_images(CLIENTS)


def _random_images(count: int) -> TensorDataset:
    rng = torch.Generator().manual_seed(_SEED)
    return TensorDataset(
        torch.randint(256, (count, 3, 32, 32), generator=rng, dtype=torch.uint8),
        torch.randint(10, (count,), generator=rng),
    )


def client_images(client: int, samples: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a client."""
    inputs, labels = _all_clients()
    first = client * MAX_SAMPLES
    return inputs[first : first + samples], labels[first : first + samples]


@cache
def _all_clients() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(_SEED)
    inputs = torch.randn(CLIENTS * MAX_SAMPLES, 3, 32, 32, generator=rng)
    return inputs, torch.randint(10, (len(inputs),), generator=rng)
