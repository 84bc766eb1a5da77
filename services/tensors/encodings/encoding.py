"""What an encoding is: which tensors it encodes, as which tensors of the file that travels, and how.

An encoded tensor keeps its name; what else it needs travels as tensors named after it, such as
``conv.weight:scale``. All other tensors travel as they are in the model.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from services.tensors.layout import (
    Layout,
    TensorKind,
    TensorSpec,
    data_bytes,
    encode_header,
    kind_of,
    locate_data,
    tensor_positions,
)

LEAST_NUMBERS = 512
"""Smaller tensors are not encoded: there is nothing to gain."""
_ORDER = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "BOOL")
"""In which order the ``safetensors`` package writes tensors, by element type; by name among themselves."""

Floats: TypeAlias = npt.NDArray[np.float32]
Decoder: TypeAlias = Callable[[int, int, Floats], None]
"""Writes the numbers of a tensor, from the first to before the last, into an array."""


class RandomBits:
    """Random bits for stochastic rounding, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        # The fastest of numpy's: to draw the bits takes a quarter of the time of int8.
        self._bits = np.random.SFC64(np.random.SeedSequence(seed))
        self._fractions: Floats = np.empty(0, np.float32)

    def fractions(self, count: int) -> Floats:
        """So many random numbers from 0 to below 1; lent until the next call."""
        if count > self._fractions.size:  # to allocate room takes longer than to fill it
            self._fractions = np.empty(count, np.float32)
        fractions = self._fractions[:count]
        np.copyto(fractions, self.draw(count))
        fractions *= np.float32(1 / 65536)
        return fractions

    def draw(self, count: int) -> npt.NDArray[np.uint16]:
        """So many numbers of 16 random bits."""
        return np.asarray(self._bits.random_raw(-(-count // 4)), np.uint64).view(np.uint16)[:count]


class PartReader:
    """Reads tensors, and parts of tensors, of a file that travelled."""

    dtypes: ClassVar[Mapping[str, npt.DTypeLike]] = {"F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1"}

    def __init__(self, path: Path) -> None:
        self._layout, begin = locate_data(path)
        self._positions = tensor_positions(self._layout, begin)
        self.descriptor: int | None = None
        """Of the open file; set by the owner of the file."""

    def read(self, name: str, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Elements of a tensor; all of them if not said which."""
        assert self.descriptor is not None, "the file is open"
        spec = self._layout[name]
        dtype = np.dtype(self.dtypes[spec.dtype])
        last = math.prod(spec.shape) if last is None else last
        size = (last - first) * dtype.itemsize
        content = os.pread(self.descriptor, size, self._positions[name] + first * dtype.itemsize)
        if len(content) != size:
            raise EOFError(f"the file is shorter than its header says, at tensor {name!r}")
        return np.frombuffer(content, dtype)


class Encoding(ABC):
    """A way for tensors to travel. What it encodes are the parameters in tensors of some size."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence for people."""
    is_difference: ClassVar[bool] = False
    """Whether it carries the difference to the model that the client received, or else the parameters."""
    is_sparse: ClassVar[bool] = False
    """Whether it carries only some of the numbers, so that the others have no value of their own."""

    @property
    @abstractmethod
    def size_factor(self) -> Fraction:
        """The size of an encoded model by that of the model, where that is told and not known."""

    @abstractmethod
    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The tensors that carry a tensor of this shape; one of them has its name."""

    @abstractmethod
    def encode(
        self, name: str, shape: tuple[int, ...], numbers: Floats, model: Floats | None, bits: RandomBits
    ) -> dict[str, npt.NDArray[Any]]:
        """The content of the parts; ``numbers`` less ``model``, if that is given."""

    @abstractmethod
    def decoder(self, name: str, shape: tuple[int, ...], parts: PartReader) -> Decoder:
        """What decodes this tensor of a file that was checked."""

    def check(self, name: str, shape: tuple[int, ...], parts: PartReader) -> None:  # noqa: B027
        """Refuse content that cannot be decoded to finite numbers; layout and finiteness are checked before.

        Raises ``BadTensorsError``.
        """

    def encodes(self, name: str, model: Layout) -> bool:
        """Whether it encodes this tensor of a model."""
        spec = model[name]
        return (
            spec.dtype in ("F32", "F16")
            and kind_of(name) is TensorKind.PARAMETERS
            and math.prod(spec.shape) >= LEAST_NUMBERS
            and not any(part in model for part in self.parts(name, spec.shape) if part != name)
        )

    def encoded_layout(self, model: Layout) -> Layout:
        """The tensors of the file in which a model of this layout travels, in their order."""
        specs: dict[str, TensorSpec] = {}
        for name, spec in model.items():
            specs |= self.parts(name, spec.shape) if self.encodes(name, model) else {name: spec}
        in_order = sorted(specs, key=lambda name: (_ORDER.index(specs[name].dtype), name))
        return {name: specs[name] for name in in_order}

    def encoded_size(self, model: Layout) -> int:
        """The size of that file, to the byte."""
        layout = self.encoded_layout(model)
        return len(encode_header(layout)) + data_bytes(layout)
