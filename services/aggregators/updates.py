"""A round's updates as an aggregator reads them: block by block, measured and clipped on the way."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from services.domain.clipping import StepNorms, StepScales
from services.domain.noise_scale import StepMoments
from services.tensors.blocks import (
    BLOCK_NUMBERS,
    Block,
    BlockBuffer,
    BlockSource,
    FloatArray,
    TensorFile,
    plan_blocks,
)
from services.tensors.encoded_files import EncodedFile
from services.tensors.encodings.encoding import Encoding
from services.tensors.layout import TensorKind, read_layout

_MAX_OPEN_FILES = 256
"""Files that are held open; a process may not have many more than a thousand."""
_ROW = 8192
_MIN_VARIANCE = 0.01
"""Where steps are clipped, a variance is at least this share of the model's."""


@dataclass(frozen=True)
class Contribution:
    """An update in an aggregation: whose it is, its file and weight, and by what its step is scaled."""

    client_id: str
    path: Path
    weight: int
    scales: StepScales = field(default_factory=StepScales)


@dataclass(frozen=True)
class ReceivedModel:
    """The file in which the model travelled to the clients."""

    path: Path
    encoding: Encoding


class ModelReader:
    """The model that the round began with, as its clients received it."""

    def __init__(self, path: Path, received: ReceivedModel | None = None) -> None:
        self.layout = read_layout(path)
        self.blocks = plan_blocks(self.layout)
        buffer = BlockBuffer(self.blocks)
        self._file: BlockSource = TensorFile(path, buffer)
        if received is not None:
            self._file = EncodedFile(received.path, buffer, self.layout, received.encoding)
        self._read: tuple[Block, FloatArray] | None = None

    def read(self, block: Block) -> FloatArray:
        """The numbers of a block, in single or double precision; lent until another block is read."""
        if self._read is None or self._read[0] is not block:
            self._read = (block, self._file.read(block))
        return self._read[1]

    def norms(self) -> StepNorms:
        """How long the model is."""
        zero = np.float32(0)
        step = StepBuffer()
        return _norms(self.blocks, [step.square(self.read(block), zero) for block in self.blocks])


class StepBuffer:
    """Room for the step of one block, to measure it. Single precision will do for that."""

    def __init__(self) -> None:
        self._numbers = np.empty(BLOCK_NUMBERS, np.float32)
        self._views: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = {}
        self.step: FloatArray = self._numbers
        """The last step that was measured."""

    def square(self, numbers: FloatArray, own: FloatArray | np.float32) -> float:
        """The squared length of ``numbers - own``."""
        if numbers.size not in self._views:
            step = self._numbers[: numbers.size]
            whole = step.size - step.size % _ROW
            self._views[step.size] = (step, step[:whole].reshape(-1, _ROW), step[whole:])
        step, rows, rest = self._views[numbers.size]
        np.subtract(numbers, own, out=step)
        self.step = step
        # Row by row: BLAS starts threads for longer ones.
        return float(sum(np.vecdot(rows, rows).tolist())) + float(np.dot(rest, rest))


class LastStep:
    """The step that the round before made: the stored model of this round less the version before it."""

    def __init__(self, blocks: Sequence[Block], model: Path, previous: Path) -> None:
        self.files = [TensorFile(path, BlockBuffer(blocks)) for path in (model, previous)]

    def product(self, block: Block, step: FloatArray) -> float:
        """The inner product with a step of one block."""
        own = np.subtract(*(file.read(block) for file in self.files), dtype=np.float32)
        return float(np.vecdot(step, own))


class StepSum:
    """What the clients' steps have in common, of the parameters only.

    The steps of a block are added up; when every client's is there, the sum is measured and dropped.
    """

    def __init__(self, clients: int, last_step: LastStep | None) -> None:
        self._clients = clients
        self._last_step = last_step
        self._sums: dict[int, FloatArray] = {}
        self._missing: dict[int, int] = {}
        self._square = 0.0
        self._product = 0.0

    def add(self, block: Block, step: FloatArray) -> None:
        """Add a client's step of one block."""
        if block.kind is not TensorKind.PARAMETERS:
            return
        if block.index in self._sums:
            self._sums[block.index] += step
        else:
            self._sums[block.index] = step.copy()
            self._missing[block.index] = self._clients
        self._missing[block.index] -= 1
        if not self._missing[block.index]:
            sum_ = self._sums.pop(block.index)
            self._square += float(np.vecdot(sum_, sum_))
            if self._last_step is not None:
                self._product += self._last_step.product(block, sum_)

    def moments(self, norms: Sequence[float]) -> StepMoments:
        """What the steps, of clients with these norms, have in common with each other and the last step."""
        clients = self._clients
        mean_square = sum(norm * norm for norm in norms) / clients
        product = None if self._last_step is None else self._product / clients
        return StepMoments(clients, mean_square, self._square / clients**2, product)


class UpdateReader:
    """One client's update, with its step scaled as its contribution says."""

    def __init__(
        self,
        given: Contribution,
        source: BlockSource,
        model: ModelReader,
        step: StepBuffer,
        total: StepSum,
        *,
        bounded: bool,
    ) -> None:
        self._total = total
        self.client_id = given.client_id
        self.weight = given.weight
        self._source = source
        self._model = model
        self._step = step
        self._squares: list[float | None] = [None] * len(model.blocks)
        self._scales = given.scales
        self._clips = given.scales.clips
        self._bounded = bounded

    def read(self, block: Block) -> FloatArray:
        """The numbers of a block, in single or double precision; lent until any update is read again."""
        numbers = self._source.read(block)
        if self._squares[block.index] is None:
            self._squares[block.index] = self._measure(block, numbers)
        if self._clips:
            numbers = self._clip(block, numbers)
        if self._bounded and block.kind is TensorKind.VARIANCES:
            numbers = np.maximum(numbers, _MIN_VARIANCE * self._model.read(block))
        return numbers

    def norms(self) -> StepNorms:
        """How far the client moves the model, before its step is scaled."""
        for block in self._model.blocks:
            if self._squares[block.index] is None:
                self.read(block)
        return _norms(self._model.blocks, self._squares)

    def _measure(self, block: Block, numbers: FloatArray) -> float:
        if block.kind is TensorKind.VARIANCES and (numbers < 0).any():
            return math.inf  # there is no such variance
        square = self._step.square(numbers, self._model.read(block))
        self._total.add(block, self._step.step)
        return square

    def _clip(self, block: Block, numbers: FloatArray) -> FloatArray:
        of_statistics = block.kind in (TensorKind.MEANS, TensorKind.VARIANCES)
        scale = self._scales.statistics if of_statistics else self._scales.parameters
        if scale == 1:
            return numbers
        own = self._model.read(block).astype(np.float64)
        return own + scale * (numbers - own)


class RoundUpdates:
    """The updates of a round in slot order, so that sums do not depend on who arrived first."""

    def __init__(
        self,
        model: ModelReader,
        contributions: Sequence[Contribution],
        *,
        encoding: Encoding,
        last_step: LastStep | None,
        bounded: bool,
        progress: Callable[[float], None],
    ) -> None:
        self._model = model
        self._last_step = last_step
        self._progress = progress
        self._opened = ExitStack()
        buffer, step = BlockBuffer(model.blocks), StepBuffer()
        self.total = StepSum(len(contributions), last_step)
        self._files = [
            EncodedFile(given.path, buffer, model.layout, encoding, model) for given in contributions
        ]
        self._readers = [
            UpdateReader(given, file, model, step, self.total, bounded=bounded)
            for given, file in zip(contributions, self._files, strict=True)
        ]

    def __enter__(self) -> Self:
        for version in [] if self._last_step is None else self._last_step.files:
            self._opened.enter_context(version)
        for file in self._files[:_MAX_OPEN_FILES]:
            self._opened.enter_context(file)
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def __iter__(self) -> Iterator[UpdateReader]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def blocks(self) -> Iterator[Block]:
        """All blocks, one after another; tells how far the work is, which may end it."""
        for done, block in enumerate(self._model.blocks, 1):
            yield block
            self._progress(done / len(self._model.blocks))


def _norms(blocks: Sequence[Block], squares: Sequence[float | None]) -> StepNorms:
    """Counters have no norm."""
    sums = dict.fromkeys(TensorKind, 0.0)
    for block, square in zip(blocks, squares, strict=True):
        assert square is not None, "measured"
        sums[block.kind] += square
    return StepNorms(
        math.sqrt(sums[TensorKind.PARAMETERS]),
        math.sqrt(sums[TensorKind.MEANS] + sums[TensorKind.VARIANCES]),
    )
