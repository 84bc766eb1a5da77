"""The data sets that a task can name: the paper's two, a generated one, and one's own."""

import fcntl
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from services.errors import DataSetError
from services.learning.generated import generate
from services.learning.imports import import_callable, is_import_path
from services.learning.samples import DataSet, Samples
from services.learning.torchvision_loading import load_datasets

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
_LONGEST_REASON = 300
_LONGEST_SILENCE_S = 60.0


class _Indexed(Protocol):
    """A data set in torch's sense: items of an input and a label."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> tuple[Any, Any]: ...


@lru_cache(maxsize=2)
def load_dataset(name: str, folder: Path, allowed_imports: tuple[str, ...] = ()) -> DataSet:
    """A data set by its name; files are looked for in ``folder``, and downloaded if they are not there."""
    if name == GENERATED:
        return generate()
    if not is_import_path(name) and name not in _TORCHVISION:
        known = ", ".join((GENERATED, *_TORCHVISION))
        raise DataSetError(
            f"unknown data set {name!r}; there are {known}, and your own as package.module:name"
        )
    if not folder.is_dir():
        raise DataSetError(
            f"the folder {str(folder)!r} for data sets is not there; set FEDCS_DATASETS to one that is"
        )
    if is_import_path(name):
        return _load_own(name, folder, allowed_imports)
    return _load_torchvision(name, folder)


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
        # One at a time: processes that need the same files at once would write into each other's.
        with (folder / ".downloading").open("w") as lock, _network_timeout():
            fcntl.flock(lock, fcntl.LOCK_EX)
            return [kind(folder, train=train, download=True) for train in (True, False)]
    except _UNREADABLE as error:
        raise DataSetError(
            f"{name} cannot be read from {str(folder)!r} ({_reason(unusable)}) nor downloaded "
            f"({_reason(error)}); put its files there, or set FEDCS_DATASETS to a folder that has them"
        ) from error


@contextmanager
def _network_timeout() -> Iterator[None]:
    """Else torchvision would wait forever for a server that falls silent."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_LONGEST_SILENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _stack_images(part: Any) -> Samples:
    images = torch.as_tensor(part.data)
    images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
    return Samples(images.contiguous(), torch.as_tensor(part.targets))


def _load_own(name: str, folder: Path, allowed_imports: Sequence[str]) -> DataSet:
    """Call the user's function with the folder; it answers with the training and the validation data."""
    make = import_callable(name, allowed_imports)
    try:
        training, validation = (_stack_items(part) for part in make(folder))
    except Exception as error:
        raise DataSetError(
            f"{name!r} has to answer with two data sets, for training and validation, whose items are a "
            f"tensor and the number of its class: {type(error).__name__}: {_reason(error)}"
        ) from error
    return DataSet(
        training, validation, classes=1 + int(torch.cat([training.labels, validation.labels]).max())
    )


def _stack_items(part: _Indexed) -> Samples:
    items = [part[place] for place in range(len(part))]
    inputs = torch.stack([torch.as_tensor(item) for item, _ in items])
    if inputs.dtype != torch.uint8:  # bytes are put on a scale later
        inputs = inputs.to(torch.float32)
    return Samples(inputs, torch.tensor([int(label) for _, label in items]))


def _reason(error: Exception) -> str:
    """In one line: torchvision tells of each mirror in lines of their own."""
    return " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
