"""``int8-topk``: the largest differences to the model in 8 bits, and a bitmap that says where they belong."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from services.errors import BadTensorsError
from services.tensors.encodings.encoding import Decoder, Encoding, Floats, PartReader, RandomBits
from services.tensors.encodings.int8 import (
    check_scales,
    factors_of,
    multiply_rows,
    round_at_random,
    row_numbers,
    scale_name,
    scales_of,
)
from services.tensors.layout import TensorSpec, tensor_text

_COUNTED_BYTES = 512
"""Of the bitmap: after each so many the decoder knows how many values came before."""


def positions_name(name: str) -> str:
    """The tensor with the bitmap: the first number is the lowest bit of the first byte."""
    return f"{name}:positions"


@dataclass(frozen=True)
class Int8TopK(Encoding):
    """A share of the numbers of each tensor, those that differ most; the others do not change."""

    topk_fraction: float

    name: ClassVar[str] = "int8-topk"
    summary: ClassVar[str] = "The largest differences in 8 bits, with a bitmap: about 1/18 of the size."
    is_difference: ClassVar[bool] = True
    is_sparse: ClassVar[bool] = True

    @property
    def size_factor(self) -> Fraction:
        """A bit for each number, and a byte for each that is sent."""
        return (Fraction(1, 8) + Fraction(str(self.topk_fraction))) / 4

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The steps of those that are sent, the bitmap, and the scales."""
        numbers = math.prod(shape)
        scales = numbers // row_numbers(shape)
        return {
            name: TensorSpec("I8", (self._sent(numbers),)),
            positions_name(name): TensorSpec("U8", (-(-numbers // 8),)),
            scale_name(name): TensorSpec("F32", (scales,)),
        }

    def encode(
        self, name: str, shape: tuple[int, ...], numbers: Floats, model: Floats | None, bits: RandomBits
    ) -> dict[str, npt.NDArray[Any]]:
        """Of equal differences the first are sent."""
        assert model is not None, "a difference"
        difference = numbers - model
        lengths = np.nan_to_num(np.abs(difference), copy=False, nan=np.inf, posinf=np.inf)
        count, row = self._sent(numbers.size), row_numbers(shape)
        least = np.partition(lengths, numbers.size - count)[numbers.size - count]
        is_sent = lengths > least
        equal = np.flatnonzero(lengths == least)
        is_sent[equal[: count - np.count_nonzero(is_sent)]] = True
        sent = np.flatnonzero(is_sent)
        scales = scales_of(lengths.reshape(-1, row).max(axis=1))
        steps = difference[sent] * factors_of(scales)[sent // row]
        round_at_random(steps, bits)
        return {
            name: steps.astype(np.int8),
            positions_name(name): np.packbits(is_sent, bitorder="little"),
            scale_name(name): scales,
        }

    def check(self, name: str, shape: tuple[int, ...], parts: PartReader) -> None:
        """The scales, and that the bitmap has as many positions as there are values, all in the tensor."""
        check_scales(name, parts)
        numbers = math.prod(shape)
        bitmap = parts.read(positions_name(name))
        marked, count = int(np.bitwise_count(bitmap).sum()), self._sent(numbers)
        if marked != count:
            raise BadTensorsError(
                f"{tensor_text(positions_name(name))}: {marked} positions, and there are {count} values"
            )
        if numbers % 8 and bitmap[-1] >> numbers % 8:
            raise BadTensorsError(f"{tensor_text(positions_name(name))}: a position beyond the tensor's end")

    def decoder(self, name: str, shape: tuple[int, ...], parts: PartReader) -> Decoder:
        """Finds the values of a stretch by the number of positions before it."""
        row, scales = row_numbers(shape), parts.read(scale_name(name))
        counts = np.bitwise_count(parts.read(positions_name(name)))
        sums = np.add.reduceat(counts, range(0, counts.size, _COUNTED_BYTES), dtype=np.int64)
        before = np.concatenate(([0], np.cumsum(sums)))

        def decode(first: int, last: int, out: Floats) -> None:
            begin = first // 8 // _COUNTED_BYTES
            bitmap = parts.read(positions_name(name), begin * _COUNTED_BYTES, -(-last // 8))
            marked = np.unpackbits(bitmap, bitorder="little").view(np.bool_)
            passed = first - begin * _COUNTED_BYTES * 8
            skipped = int(before[begin]) + int(np.count_nonzero(marked[:passed]))
            marked = marked[passed : passed + last - first]
            out[:] = 0
            out[marked] = parts.read(name, skipped, skipped + int(np.count_nonzero(marked)))
            multiply_rows(out, scales, row, first)

        return decode

    def _sent(self, numbers: int) -> int:
        """How many of a tensor's numbers are sent."""
        return math.ceil(numbers * Fraction(str(self.topk_fraction)))
