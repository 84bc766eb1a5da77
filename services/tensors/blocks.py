"""Safetensors files of one layout, read and written a block at a time: the same numbers of each file.

A block stays in the core's cache while something is computed with it, and memory does not depend on the
number of files.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from services.tensors.layout import (
    Layout,
    TensorKind,
    data_bytes,
    encode_header,
    kind_of,
    locate_data,
    tensor_positions,
)

BLOCK_NUMBERS = 32 * 1024

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]

_DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no such type: these are the upper halves of F32
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_FLOATS = {"F16", "F32", "F64"}


class Segment(NamedTuple):
    """Some of the numbers of a tensor, from the first to before the last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Block:
    """Segments of tensors of one element type and one kind, one after another."""

    index: int
    """Its place among the blocks of the layout."""
    dtype: str
    kind: TensorKind
    segments: tuple[Segment, ...]
    size: int
    """How many numbers it has."""

    @property
    def is_float(self) -> bool:
        """Whether its numbers are not whole ones."""
        return self.dtype in _FLOATS or self.dtype == "BF16"

    @property
    def number_type(self) -> type[np.floating[Any]]:
        """The narrowest type for its numbers when they are read."""
        return np.float32 if self.is_float and self.dtype != "F64" else np.float64


class BlockSource(Protocol):
    """What has the numbers of every block: a file of tensors, or one whose numbers have to be decoded."""

    def read(self, block: Block) -> FloatArray:
        """The numbers of a block, in single or double precision; lent until the next block is read."""
        ...


def plan_blocks(layout: Layout) -> list[Block]:
    """All numbers of these tensors in blocks of bounded size, each of one element type and one kind."""
    groups: dict[tuple[str, TensorKind], list[str]] = {}
    for name, spec in layout.items():
        groups.setdefault((spec.dtype, kind_of(name)), []).append(name)
    blocks: list[Block] = []
    for (dtype, kind), names in groups.items():
        for segments in _cut(layout, names):
            size = sum(last - first for _, first, last in segments)
            blocks.append(Block(len(blocks), dtype, kind, tuple(segments), size))
    return blocks


def _cut(layout: Layout, names: Iterable[str]) -> Iterator[list[Segment]]:
    """The numbers of these tensors, as many at a time as a block may have."""
    segments: list[Segment] = []
    room = BLOCK_NUMBERS
    for name in names:
        left = math.prod(layout[name].shape)
        first = 0
        while left:
            taken = min(left, room)
            segments.append(Segment(name, first, first + taken))
            first, left, room = first + taken, left - taken, room - taken
            if not room:
                yield segments
                segments, room = [], BLOCK_NUMBERS
    if segments:
        yield segments


class BlockBuffer:
    """Room for one block, which many files share: to allocate room takes longer than to fill it."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._bytes = memoryview(bytearray(BLOCK_NUMBERS * 8))
        self.decoded = np.empty(BLOCK_NUMBERS, np.float32)
        """Room for the numbers of a block that had to be decoded."""
        self._views: dict[tuple[str, int], npt.NDArray[Any]] = {}
        self._reads: dict[tuple[int, int], tuple[Layout, list[_Reads]]] = {}

    def reads_of(self, layout: Layout, begin: int) -> "list[_Reads]":
        """What to read of a file of this layout for each block; files of one layout share the answer."""
        key = (id(layout), begin)
        if key not in self._reads:
            positions = tensor_positions(layout, begin)
            reads = [self._plan_reads(block, positions) for block in self._blocks]
            self._reads[key] = (layout, reads)  # with the layout, so that no other gets its id
        return self._reads[key][1]

    def numbers(self, block: Block) -> FloatArray:
        """What was read, as numbers to compute with."""
        key = (block.dtype, block.size)
        stored = self._views.get(key)
        if stored is None:
            stored = self._views[key] = np.frombuffer(self._bytes, _DTYPES[block.dtype], block.size)
        if block.dtype in ("F32", "F64"):
            return stored
        if block.dtype == "F16":
            return stored.astype(np.float32)
        if block.dtype == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64)

    def _plan_reads(self, block: Block, positions: Mapping[str, int]) -> "_Reads":
        """Segments that lie side by side in the file are read at once."""
        item_bytes = _DTYPES[block.dtype].itemsize
        stretches: list[tuple[int, int]] = []
        end = -1
        for name, first, last in block.segments:
            begin, size = positions[name] + first * item_bytes, (last - first) * item_bytes
            if begin == end:
                begin, before = stretches.pop()
                size += before
            stretches.append((begin, size))
            end = begin + size
        reads, filled = [], 0
        for begin, size in stretches:
            reads.append((self._bytes[filled : filled + size], begin))
            filled += size
        return reads


_Reads: TypeAlias = list[tuple[memoryview, int]]
"""Which room to fill from which position of a file."""


class TensorFile:
    """A file of tensors, read block by block. As a context it stays open; else each block opens it."""

    def __init__(self, path: Path, buffer: BlockBuffer) -> None:
        self._path = path
        self._buffer = buffer
        self._reads = buffer.reads_of(*locate_data(path))
        self._descriptor: int | None = None

    def __enter__(self) -> "TensorFile":
        self._descriptor = os.open(self._path, os.O_RDONLY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._descriptor is not None, "it was entered"
        os.close(self._descriptor)
        self._descriptor = None

    def read(self, block: Block) -> FloatArray:
        """The numbers of a block, lent until the buffer is used again."""
        if self._descriptor is None:
            with self:
                return self.read(block)
        for room, begin in self._reads[block.index]:
            if os.preadv(self._descriptor, [room], begin) != len(room):
                raise EOFError(f"{self._path.name} is shorter than its header says")
        return self._buffer.numbers(block)


class ModelBuffer:
    """A model that is being computed, block by block."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._positions = tensor_positions(layout, 0)
        self._data = np.empty(data_bytes(layout), np.uint8)

    def write(self, block: Block, numbers: npt.NDArray[Any]) -> None:
        """Set the numbers of a block; whole numbers are rounded, not cut off."""
        dtype = _DTYPES[block.dtype]
        written = 0
        for name, first, last in block.segments:
            position = self._positions[name]
            room = self._data[position + first * dtype.itemsize : position + last * dtype.itemsize]
            given = numbers[written : written + last - first]
            room.view(dtype)[:] = _encode(given, block.dtype)
            written += last - first

    def content(self) -> Iterator[bytes | memoryview]:
        """The safetensors file, in pieces."""
        yield encode_header(self._layout)
        yield self._data.data


def _encode(numbers: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    if dtype in _FLOATS:
        return numbers
    if dtype == "BF16":
        bits = numbers.astype(np.float32).view(np.uint32)
        bits += 0x7FFF + ((bits >> 16) & 1)  # to the nearest; halves go to the even one
        return bits >> 16
    rounded: npt.NDArray[Any] = np.rint(numbers)
    return rounded
