"""Data sets that a task can name, their partitions for simulated clients, and derived random seeds."""

import fcntl
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.domain.builtins import DATASETS, is_import_path
from services.domain.tasks import PartitionScheme
from services.errors import DataSetError, DataSetUnavailableError
from services.learning.devices import is_host_failure
from services.learning.networks import import_callable


class Purpose(IntEnum):
    """The purpose of a derived seed; each purpose has its own."""

    MODEL = 0
    PARTITION = 1
    TRAINING = 2
    ENCODING = 3


def derive_seed(task_seed: int, purpose: Purpose, *numbers: int) -> int:
    """A 63-bit seed for this purpose; ``numbers`` are the round, the partition, or both."""
    sequence = np.random.SeedSequence(task_seed, spawn_key=(purpose, *numbers))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class Samples:
    """Inputs and their labels. Byte images stay bytes, which takes a quarter of the memory."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DataSet:
    """Training data of the devices, and validation data of the global model."""

    training: Samples
    validation: Samples
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.training.inputs.shape[1:])

    def prepare(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Inputs for a network; bytes are normalized by the mean and deviation of the training data."""
        if inputs.dtype == torch.uint8:
            mean, deviation = self._normalization
            inputs = (inputs.to(torch.float32) - mean) / deviation
        if inputs.dim() == 4:
            return inputs.to(device, memory_format=torch.channels_last)
        return inputs.to(device)

    @cached_property
    def _normalization(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, from the histogram of byte values."""
        levels = torch.arange(256, dtype=torch.float64)
        moments = []
        for channel in self.training.inputs.unbind(1):
            shares = torch.bincount(channel.reshape(-1), minlength=256) / channel.numel()
            mean = (shares * levels).sum()
            deviation = (shares * (levels - mean) ** 2).sum().sqrt().clamp_min(1.0)
            moments.append(torch.stack([mean, deviation]))
        by_channel = torch.stack(moments, 1).to(torch.float32)
        mean, deviation = by_channel.reshape(2, -1, *[1] * (self.training.inputs.dim() - 2))
        return mean, deviation


_CLASSES_PER_DEVICE = 2


def draw_partition(
    labels: Tensor, classes: int, scheme: PartitionScheme, *, samples: int, task_seed: int, partition: int
) -> Tensor:
    """The indices of ``samples`` samples, drawn without replacement from all classes or from two.

    A device that reports more samples later keeps the ones it had.
    """
    rng = np.random.default_rng(derive_seed(task_seed, Purpose.PARTITION, partition))
    indices = np.arange(len(labels))
    if scheme is PartitionScheme.NON_IID:
        own = rng.choice(classes, min(_CLASSES_PER_DEVICE, classes), replace=False)
        indices = indices[np.isin(labels.numpy(), own)]
    if samples > len(indices):
        raise DataSetError(
            f"the device reported {samples} samples, but its partition of the data set ({scheme.value}) has "
            f"only {len(indices)}; report fewer samples"
        )
    return torch.from_numpy(rng.permutation(indices)[:samples])


CLASSES = 10
SIDE = 16
_TRAINING = 6_000
_VALIDATION = 2_000
_PATTERNS_PER_CLASS = 3
_MAX_SHIFT = 2
_OTHER_CLASS_WEIGHT = 0.5
_NOISE = 0.8
_SEED = 20190520


def generate() -> DataSet:
    """Generate the synthetic data set."""
    rng = np.random.default_rng(_SEED)
    patterns = _smooth(rng.standard_normal((CLASSES, _PATTERNS_PER_CLASS, SIDE, SIDE)))
    return DataSet(_draw(rng, patterns, _TRAINING), _draw(rng, patterns, _VALIDATION), CLASSES)


def _smooth(fields: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Smooth random fields with variance 1."""
    for _ in range(3):
        for axis in (-2, -1):
            fields = (np.roll(fields, 1, axis) + fields + np.roll(fields, -1, axis)) / 3
    spread: npt.NDArray[np.float64] = fields.std(axis=(-2, -1), keepdims=True)
    return fields / spread


def _draw(rng: np.random.Generator, patterns: npt.NDArray[np.float64], count: int) -> Samples:
    labels = rng.integers(CLASSES, size=count)
    others = (labels + rng.integers(1, CLASSES, size=count)) % CLASSES
    own, other = (
        patterns[of_class, rng.integers(_PATTERNS_PER_CLASS, size=count)] for of_class in (labels, others)
    )
    images = own + _OTHER_CLASS_WEIGHT * other + _NOISE * rng.standard_normal(own.shape)
    moves = rng.integers(-_MAX_SHIFT, _MAX_SHIFT + 1, size=(count, 2))
    moved = np.stack([np.roll(image, move, (0, 1)) for image, move in zip(images, moves, strict=True)])
    inputs = np.clip(np.rint(128 + 32 * moved), 0, 255).astype(np.uint8)
    return Samples(torch.from_numpy(inputs[:, None]), torch.from_numpy(labels))


GENERATED = "generated"
_TORCHVISION = {"cifar-10": "CIFAR10", "fashion-mnist": "FashionMNIST"}
_UNREADABLE = (
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    AssertionError,
    EOFError,
    KeyError,
    pickle.UnpicklingError,
)
_MAX_REASON_CHARACTERS = 300
_NETWORK_TIMEOUT_S = 60.0


class _Indexed(Protocol):
    """A data set in torch's sense: items of an input and a label."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


@lru_cache(maxsize=2)
def load_dataset(name: str, folder: Path, allowed_imports: tuple[str, ...] = ()) -> DataSet:
    """Load a data set by name from ``folder``; missing files are downloaded."""
    if name == GENERATED:
        return generate()
    if not is_import_path(name) and name not in _TORCHVISION:
        raise DataSetError(
            f"unknown data set {name!r}; there are {', '.join(DATASETS)}, and your own as package.module:name"
        )
    check_folder(folder)
    if is_import_path(name):
        return _load_own(name, folder, allowed_imports)
    return _load_torchvision(name, folder)


def check_folder(folder: Path) -> None:
    """Check that the folder of the data sets exists and is readable."""
    if not folder.is_dir():
        raise DataSetUnavailableError(
            f"the folder {str(folder)!r} for data sets is not there; set FEDCS_DATASETS to one that is"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        raise DataSetUnavailableError(
            f"the folder {str(folder)!r} for data sets cannot be read; give the worker access to it"
        )


def _load_torchvision(name: str, folder: Path) -> DataSet:
    kind = getattr(load_datasets(), _TORCHVISION[name])
    try:
        parts = [kind(folder, train=train, download=False) for train in (True, False)]
    except _UNREADABLE as unusable:
        parts = _download(kind, name, folder, unusable)
    training, validation = (_stack_images(part) for part in parts)
    return DataSet(training, validation, classes=len(parts[0].classes))


def _download(kind: Any, name: str, folder: Path, unusable: Exception) -> list[Any]:
    try:
        # One process at a time: concurrent downloads would overwrite each other's files.
        with (folder / ".downloading").open("w") as lock, _network_timeout():
            fcntl.flock(lock, fcntl.LOCK_EX)
            return [kind(folder, train=train, download=True) for train in (True, False)]
    except _UNREADABLE as error:
        raise DataSetUnavailableError(
            f"{name} cannot be read from {str(folder)!r} ({_reason(unusable)}) nor downloaded "
            f"({_reason(error)}); put its files there, or set FEDCS_DATASETS to a folder that has them"
        ) from error


@contextmanager
def _network_timeout() -> Iterator[None]:
    """Set a timeout: torchvision would wait forever for a server that stops sending."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _stack_images(part: Any) -> Samples:
    images = torch.as_tensor(part.data)
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
    return Samples(images.contiguous(), torch.as_tensor(part.targets))


def _load_own(name: str, folder: Path, allowed_imports: Sequence[str]) -> DataSet:
    """Call the user's function with the folder; it returns the training and the validation data."""
    factory = import_callable(name, allowed_imports)
    try:
        training, validation = (_stack_items(part) for part in factory(folder))
    except OSError as error:
        raise DataSetUnavailableError(
            f"{name!r} cannot be read from {str(folder)!r} ({_reason(error)}); put its files there, or set "
            "FEDCS_DATASETS to a folder that has them"
        ) from error
    except Exception as error:
        if is_host_failure(error):
            raise
        raise DataSetError(
            f"{name!r} must return two data sets, for training and validation, whose items are a "
            f"tensor and the number of its class: {type(error).__name__}: {_reason(error)}"
        ) from error
    return DataSet(
        training, validation, classes=1 + int(torch.cat([training.labels, validation.labels]).max())
    )


def _stack_items(part: _Indexed) -> Samples:
    items = [part[index] for index in range(len(part))]
    inputs = torch.stack([torch.as_tensor(item) for item, _ in items])
    if inputs.dtype != torch.uint8:  # bytes are normalized later
        inputs = inputs.to(torch.float32)
    return Samples(inputs, torch.tensor([int(label) for _, label in items]))


def _reason(error: Exception) -> str:
    """The message in one line: torchvision lists every mirror on a separate line."""
    return " ".join(str(error).split())[:_MAX_REASON_CHARACTERS] or type(error).__name__


_OPERATORS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def load_datasets() -> ModuleType:
    """Import ``torchvision.datasets``, also with a torchvision build that does not fit the installed torch.

    A CUDA build of torchvision beside a CPU build of torch cannot load its operators, and the import fails
    because torchvision describes two of them. If these are defined before, the import succeeds.
    """
    try:
        import torchvision  # noqa: F401, PLC0415
    except RuntimeError:
        for name, schema in _OPERATORS.items():
            torch.library.define(name, schema)
    from torchvision import datasets  # noqa: PLC0415

    module: ModuleType = datasets
    return module
