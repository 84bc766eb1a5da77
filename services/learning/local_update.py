"""Update: a client trains the global model on its own data (section IV-B of the paper)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.learning.devices import to_device


@dataclass(frozen=True)
class Recipe:
    """How a client trains in one round."""

    epochs: int
    batch_size: int
    learning_rate: float


def update_locally(
    network: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    after_batch: Callable[[float], None],
) -> None:
    """Train by plain SGD; ``after_batch`` is told which part is done, and may raise to end it."""
    torch.manual_seed(seed)  # for the order of the samples, and for dropout
    to_device(network, inputs.device).train()
    # As equal as can be: a last batch of one or two samples would throw batch normalisation off its course.
    batches = math.ceil(len(labels) / recipe.batch_size)
    samples = recipe.epochs * len(labels)
    done = 0
    for _ in range(recipe.epochs):
        for batch in torch.tensor_split(torch.randperm(len(labels)), batches):
            loss = nn.functional.cross_entropy(network(inputs[batch]), labels[batch])
            network.zero_grad()
            torch.autograd.backward(loss)
            _descend(network, recipe.learning_rate)
            done += len(batch)
            after_batch(done / samples)


@torch.no_grad()
def _descend(network: nn.Module, learning_rate: float) -> None:
    """A step of SGD. ``torch.optim`` gives the same bits, but takes a second to load in every process."""
    for parameter in network.parameters():
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-learning_rate)
