"""Update: a client trains the global model on its own data (section IV-B of the paper)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.learning.devices import to_device


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of a local update in one round."""

    epochs: int
    batch_size: int
    learning_rate: float
    gradient_clip_norm: float | None = None
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    calibrated_loss: bool = False


def update_locally(
    network: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    recipe: Hyperparameters,
    *,
    seed: int,
    after_batch: Callable[[float], None],
) -> None:
    """Train by SGD; ``after_batch`` is called with the fraction done, and may raise to stop."""
    torch.manual_seed(seed)  # for the sample order and dropout
    to_device(network, inputs.device).train()
    # Batches of nearly equal size: batch normalisation fails on a last batch of one or two samples.
    batches = math.ceil(len(labels) / recipe.batch_size)
    samples = recipe.epochs * len(labels)
    done = 0
    sgd = _Sgd(network, recipe)
    for _ in range(recipe.epochs):
        for batch in torch.tensor_split(torch.randperm(len(labels)), batches):
            outputs = network(inputs[batch])
            if recipe.calibrated_loss:
                outputs = outputs + _log_prior(labels, outputs.shape[1])
            loss = nn.functional.cross_entropy(outputs, labels[batch])
            network.zero_grad()
            torch.autograd.backward(loss)
            sgd.step()
            done += len(batch)
            after_batch(done / samples)


def _log_prior(labels: Tensor, classes: int) -> Tensor:
    """The logarithm of the classes' shares in the client's data, with one sample more of every class."""
    counts = torch.bincount(labels, minlength=classes) + 1
    return (counts / counts.sum()).log()


class _Sgd:
    """Steps of SGD. The first ``torch.optim.SGD`` of a process imports modules for 2 s and 70 MB."""

    def __init__(self, network: nn.Module, recipe: Hyperparameters) -> None:
        self._recipe = recipe
        self._parameters = list(network.parameters())
        # Only kept if they are used.
        self._received = [p.detach().clone() for p in self._parameters] if recipe.proximal_mu else []
        self._velocities = [torch.zeros_like(p) for p in self._parameters] if recipe.local_momentum else []

    @torch.no_grad()
    def step(self) -> None:
        """Proximal term, clipping, weight decay, momentum and step, in this order."""
        recipe = self._recipe
        for parameter, received in zip(self._parameters, self._received, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - received, alpha=recipe.proximal_mu)
        if recipe.gradient_clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, recipe.gradient_clip_norm)
        for place, parameter in enumerate(self._parameters):
            if (gradient := parameter.grad) is None:
                continue
            if recipe.weight_decay:
                gradient.add_(parameter, alpha=recipe.weight_decay)
            if recipe.local_momentum:
                gradient = self._velocities[place].mul_(recipe.local_momentum).add_(gradient)
            parameter.add_(gradient, alpha=-recipe.learning_rate)
