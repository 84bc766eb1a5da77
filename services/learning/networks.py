"""Networks that a task can name (section V-B of the paper), and the import of user-defined ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from services.domain.builtins import is_import_path
from services.errors import ImportRefusedError, NetworkError
from services.learning.devices import is_host_failure

_CHANNELS = (32, 32, 64, 64, 128, 128)
_RESNET_CHANNELS = (64, 128, 256, 512)
_GROUPS = 8
_MAX_REASON_CHARACTERS = 500


def group_norm(channels: int) -> nn.Module:
    """Normalisation of each sample by itself, so that it does not depend on the classes of a batch."""
    return nn.GroupNorm(_GROUPS, channels)


def paper_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    pools: int,
    dense: Sequence[int],
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
) -> nn.Module:
    """Three pairs of 3×3 convolutions, the first ``pools`` pairs with a 2×2 max pool; then dense layers."""
    depth, height, width = _image_shape(input_shape)
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise((depth, *_CHANNELS))):
        layers += [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU(inplace=True)]
        if index % 2 == 1 and index // 2 < pools:
            layers.append(nn.MaxPool2d(2))
    flattened = _CHANNELS[-1] * (height >> pools) * (width >> pools)
    if flattened == 0:
        raise NetworkError(f"images of {height}×{width} are too small for {pools} poolings")
    layers.append(nn.Flatten())
    for before, after in pairwise((flattened, *dense)):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(dense[-1], classes))
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, added to their input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            group_norm(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            group_norm(after),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), group_norm(after))

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the block."""
        return nn.functional.relu(self.layers(inputs) + self.shortcut(inputs))


def resnet18(input_shape: Sequence[int], classes: int) -> nn.Module:
    """ResNet-18 for small images: a 3×3 convolution in place of the first 7×7 convolution and the pool."""
    depth, _, _ = _image_shape(input_shape)
    layers: list[nn.Module] = [
        nn.Conv2d(depth, _RESNET_CHANNELS[0], 3, padding=1, bias=False),
        group_norm(_RESNET_CHANNELS[0]),
        nn.ReLU(inplace=True),
    ]
    for index, (before, after) in enumerate(pairwise((_RESNET_CHANNELS[0], *_RESNET_CHANNELS))):
        layers += [ResidualBlock(before, after, 2 if index else 1), ResidualBlock(after, after, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_RESNET_CHANNELS[-1], classes)]
    return nn.Sequential(*layers)


def _image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise NetworkError(
            f"the data set's inputs have the shape {tuple(input_shape)}, but this network needs images of "
            "(channels, height, width); name your own network as package.module:Name"
        )
    depth, height, width = input_shape
    return depth, height, width


_NETWORKS: Mapping[str, Callable[[Sequence[int], int], nn.Module]] = {
    # As the paper describes it: 1.15 M parameters for CIFAR-10, 0.80 M for Fashion-MNIST.
    "paper-cnn": partial(paper_cnn, pools=3, dense=(382, 192)),
    # Matches the sizes that the paper states: 4.583 M (18.3 MB) and 3.600 M (14.4 MB).
    "paper-cnn-stated-size": partial(paper_cnn, pools=2, dense=(512, 192)),
    "paper-cnn-gn": partial(paper_cnn, pools=3, dense=(382, 192), norm=group_norm),
    "resnet18-gn": resnet18,
}


def build_network(
    name: str, input_shape: Sequence[int], classes: int, *, seed: int, allowed_imports: Sequence[str] = ()
) -> nn.Module:
    """Build a network; the same seed gives the same parameters. User-defined ones get no arguments."""
    if is_import_path(name):
        return _build_own(name, seed, allowed_imports)
    if name not in _NETWORKS:
        raise NetworkError(
            f"unknown network {name!r}; there are {', '.join(_NETWORKS)}, and your own as package.module:Name"
        )
    torch.manual_seed(seed)
    return _NETWORKS[name](input_shape, classes)


def _build_own(name: str, seed: int, allowed_imports: Sequence[str]) -> nn.Module:
    factory = import_callable(name, allowed_imports)
    torch.manual_seed(seed)  # after the import, which may draw random numbers the first time
    try:
        network = factory()
    except Exception as error:
        if is_host_failure(error):
            raise
        raise NetworkError(
            f"{name!r} must return a network when called without arguments: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise NetworkError(f"{name!r} must return a torch.nn.Module, but returned a {type(network).__name__}")
    return network


def load_parameters(network: nn.Module, path: Path) -> None:
    """Load a model file into a network."""
    try:
        network.load_state_dict(load_file(path))
    except RuntimeError as error:
        if is_host_failure(error):
            raise
        reason = " ".join(str(error).split())[
            :_MAX_REASON_CHARACTERS
        ]  # torch lists every tensor on a separate line
        raise NetworkError(f"the model's tensors do not fit the network: {reason}") from error


def parameters_of(network: nn.Module) -> dict[str, Tensor]:
    """The state of a network with its buffers, as contiguous tensors that do not share memory."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }


def import_callable(path: str, allowed: Sequence[str]) -> Callable[..., Any]:
    """Import the object of a path such as ``package.module:Name`` if its module or a parent is allowed."""
    module_name, _, attribute = path.partition(":")
    if not _is_within(module_name, allowed):
        raise ImportRefusedError(
            f"{path!r} may not be imported; the workers' FEDCS_ALLOWED_IMPORTS has to name the module "
            f"{module_name!r} or a package above it"
        )
    try:
        found = getattr(import_module(module_name), attribute)
    except Exception as error:  # a module may raise anything
        raise ImportRefusedError(
            f"{path!r} cannot be imported by the workers ({type(error).__name__}: {error}); "
            "correct the name, or install the module on the workers"
        ) from error
    if not callable(found):
        raise ImportRefusedError(f"{path!r} is not a class or function")
    home = getattr(found, "__module__", module_name)
    if not _is_within(home, allowed):  # an object that an allowed module imported from elsewhere
        raise ImportRefusedError(f"{path!r} comes from {home!r}, which FEDCS_ALLOWED_IMPORTS does not name")
    factory: Callable[..., Any] = found
    return factory


def _is_within(module_name: str, allowed: Sequence[str]) -> bool:
    return any(module_name == prefix or module_name.startswith(f"{prefix}.") for prefix in allowed)
