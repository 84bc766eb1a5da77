"""The networks that can be trained (section V-B of the paper), and those of one's own."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from services.errors import NetworkError
from services.learning.imports import import_callable, is_import_path

_CHANNELS = (32, 32, 64, 64, 128, 128)
_LONGEST_REASON = 500


def paper_cnn(input_shape: Sequence[int], classes: int, *, pools: int, dense: Sequence[int]) -> nn.Module:
    """Six 3×3 convolutions in pairs, ``pools`` of the pairs followed by a 2×2 max pool; then dense layers."""
    if len(input_shape) != 3:
        raise NetworkError(
            f"the data set's inputs have the shape {tuple(input_shape)}, and this network takes images of "
            "(channels, height, width); name a network of your own as package.module:Name"
        )
    depth, height, width = input_shape
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise((depth, *_CHANNELS))):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        if place % 2 == 1 and place // 2 < pools:
            layers.append(nn.MaxPool2d(2))
    flattened = _CHANNELS[-1] * (height >> pools) * (width >> pools)
    if flattened == 0:
        raise NetworkError(f"images of {height}×{width} are too small for {pools} poolings")
    layers.append(nn.Flatten())
    for before, after in pairwise((flattened, *dense)):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(dense[-1], classes))
    return nn.Sequential(*layers)


_NETWORKS = {
    # As the text draws it: 1.15 M parameters for CIFAR-10, 0.80 M for Fashion-MNIST.
    "paper-cnn": {"pools": 3, "dense": (382, 192)},
    # What meets the sizes that the paper states: 4.583 M (18.3 MB) and 3.600 M (14.4 MB).
    "paper-cnn-stated-size": {"pools": 2, "dense": (512, 192)},
}


def build_network(
    name: str, input_shape: Sequence[int], classes: int, *, seed: int, allowed_imports: Sequence[str] = ()
) -> nn.Module:
    """A new network; the same seed gives the same parameters. One's own is called without arguments."""
    if is_import_path(name):
        return _build_own(name, seed, allowed_imports)
    if name not in _NETWORKS:
        raise NetworkError(
            f"unknown network {name!r}; there are {', '.join(_NETWORKS)}, and your own as package.module:Name"
        )
    torch.manual_seed(seed)
    return paper_cnn(input_shape, classes, **_NETWORKS[name])  # type: ignore[arg-type]


def _build_own(name: str, seed: int, allowed_imports: Sequence[str]) -> nn.Module:
    make = import_callable(name, allowed_imports)
    torch.manual_seed(seed)  # after the import, which may draw random numbers, but only the first time
    try:
        network = make()
    except Exception as error:
        raise NetworkError(
            f"{name!r} has to make a network when called without arguments: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise NetworkError(f"{name!r} has to make a torch.nn.Module, and made a {type(network).__name__}")
    return network


def load_parameters(network: nn.Module, path: Path) -> None:
    """Put the tensors of a model file into a network."""
    try:
        network.load_state_dict(load_file(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]  # torch names every tensor, in many lines
        raise NetworkError(f"the model's tensors do not fit the network: {reason}") from error


def parameters_of(network: nn.Module) -> dict[str, Tensor]:
    """All that makes up the network's state, buffers too, as a model file holds it: no two share memory."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
