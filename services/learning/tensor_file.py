"""Reading many model files of one layout a little at a time: the same run of numbers from each of them."""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from services.learning.outliers import TensorKind
from services.tensors import TensorSpec, locate

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_RUN_NUMBERS = 32 * 1024
"""As many as stay in a core's cache while something is done with them."""


class Segment(NamedTuple):
    """Some of the numbers of a tensor, from the first to before the last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Run:
    """Segments of one element type and one kind, one after another."""

    dtype: torch.dtype
    kind: TensorKind
    segments: Sequence[Segment]

    @property
    def numbers(self) -> int:
        """How many there are in it."""
        return sum(last - first for _, first, last in self.segments)


class TensorFile:
    """A model file, read in runs. As a context it stays open; else it is opened for each run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = locate(path)
        self._file: io.FileIO | None = None

    def __enter__(self) -> "TensorFile":
        self._file = io.FileIO(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None, "it was entered"
        self._file.close()
        self._file = None

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """What it holds."""
        return {name: spec for name, (spec, _) in self._places.items()}

    def read(self, run: Run, buffer: bytearray) -> Tensor:
        """The numbers of a run, as a view of the buffer."""
        if self._file is None:
            with self:
                return self.read(run, buffer)
        room = memoryview(buffer)
        position = 0
        for begin, size in self._stretches(run):
            if os.preadv(self._file.fileno(), [room[position : position + size]], begin) != size:
                raise EOFError(f"{self._path.name} is shorter than its header says")
            position += size
        return torch.frombuffer(buffer, dtype=run.dtype, count=run.numbers)

    def _stretches(self, run: Run) -> Iterator[tuple[int, int]]:
        """Where to read how much; segments that lie side by side are read at once."""
        begin, size = 0, 0
        for name, first, last in run.segments:
            place = self._places[name][1] + first * run.dtype.itemsize
            if size and place != begin + size:
                yield begin, size
                size = 0
            if not size:
                begin = place
            size += (last - first) * run.dtype.itemsize
        yield begin, size


def plan_runs(specs: Mapping[str, TensorSpec], kinds: Mapping[str, TensorKind]) -> Iterator[Run]:
    """All numbers of these tensors in runs of bounded length, each of tensors of one kind."""
    for (dtype, kind), names in groupby(specs, key=lambda name: (specs[name].dtype, kinds[name])):
        segments: list[Segment] = []
        room = _RUN_NUMBERS
        for name in names:
            left = specs[name].size_bytes // _DTYPES[dtype].itemsize
            first = 0
            while left:
                taken = min(left, room)
                segments.append(Segment(name, first, first + taken))
                first, left, room = first + taken, left - taken, room - taken
                if not room:
                    yield Run(_DTYPES[dtype], kind, segments)
                    segments, room = [], _RUN_NUMBERS
        if segments:
            yield Run(_DTYPES[dtype], kind, segments)


def new_buffer() -> bytearray:
    """Room for any run."""
    return bytearray(_RUN_NUMBERS * torch.float64.itemsize)


def new_tensors(specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """Tensors of this layout, not filled yet."""
    return {name: torch.empty(spec.shape, dtype=_DTYPES[spec.dtype]) for name, spec in specs.items()}


def write_run(run: Run, numbers: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Put the numbers of a run into the tensors they belong to; whole numbers are rounded, not cut off."""
    fitting = numbers if run.dtype.is_floating_point else numbers.round()
    position = 0
    for name, first, last in run.segments:
        tensors[name].view(-1)[first:last] = fitting[position : position + last - first]
        position += last - first
