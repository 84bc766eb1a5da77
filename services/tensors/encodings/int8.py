"""``int8``: the difference to the model in steps of a scale, rounded at random so that the mean stays right.

A tensor has one scale for each output channel, its first dimension; if that has rows too short to pay for a
scale, one for all of it (docs/adr/0032).
"""

import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from services.errors import BadTensorsError
from services.tensors.encodings.encoding import Decoder, Encoding, Floats, PartReader, RandomBits
from services.tensors.layout import TensorSpec, tensor_text

STEPS = 127
_LEAST_ROW = 32
"""Numbers; with less in a row, its scale would take more than an eighth of the room of its numbers."""
_LARGEST_SCALE = float(np.finfo(np.float32).max) / 256
"""No number that is decoded with it is infinite."""
_ROOM = np.float32(1 + 2.0**-18)
"""Scales are so much larger than they have to be that no number is rounded up beyond the last step."""
_CHUNK = 32 * 1024


def scale_name(name: str) -> str:
    """The tensor with the scales of a tensor."""
    return f"{name}:scale"


def row_numbers(shape: tuple[int, ...]) -> int:
    """How many numbers, one after another, share a scale."""
    numbers = math.prod(shape)
    row = numbers // shape[0]
    return row if row >= _LEAST_ROW else numbers


def scales_of(largest: Floats) -> Floats:
    """The scales of rows whose largest differences are these; 0 for rows without any."""
    return largest * (_ROOM / np.float32(STEPS))


def factors_of(scales: Floats) -> Floats:
    """By what differences become numbers of steps."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales >= np.finfo(np.float32).tiny)


def round_at_random(steps: Floats, bits: RandomBits) -> None:
    """Round numbers of steps up or down, the nearer one the more often; in place."""
    steps += bits.fractions(steps.size)
    np.floor(steps, out=steps)


def check_scales(name: str, parts: PartReader) -> None:
    """Refuse scales that are negative, or too large for finite numbers."""
    scales = parts.read(scale_name(name))
    if not (scales >= 0).all() or not (scales <= _LARGEST_SCALE).all():
        raise BadTensorsError(f"{tensor_text(scale_name(name))}: not all from 0 to {_LARGEST_SCALE:.3g}")


def multiply_rows(out: Floats, scales: Floats, row: int, first: int) -> None:
    """Multiply numbers of a tensor, from its ``first`` on, by the scales of their rows."""
    done = min(-first % row, out.size)
    out[:done] *= scales[first // row]
    whole = (out.size - done) // row
    begin = (first + done) // row
    rows = out[done : done + whole * row].reshape(whole, row)
    rows *= scales[begin : begin + whole, None]
    if rest := out[done + whole * row :].size:
        out[-rest:] *= scales[begin + whole]


class Int8(Encoding):
    """A quarter of the bits: whole steps from -127 to 127, and the scales."""

    name: ClassVar[str] = "int8"
    summary: ClassVar[str] = "The difference to the model in 8 bits: a quarter of the size."
    is_difference: ClassVar[bool] = True

    @property
    def size_factor(self) -> Fraction:
        """A quarter."""
        return Fraction(1, 4)

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The steps, and the scales."""
        scales = math.prod(shape) // row_numbers(shape)
        return {name: TensorSpec("I8", shape), scale_name(name): TensorSpec("F32", (scales,))}

    def encode(
        self, name: str, shape: tuple[int, ...], numbers: Floats, model: Floats | None, bits: RandomBits
    ) -> dict[str, npt.NDArray[Any]]:
        """Encode some rows at a time, which stay in the core's cache meanwhile."""
        assert model is not None, "a difference"
        row = row_numbers(shape)
        rows = max(_CHUNK // row, 1)
        steps = np.empty(numbers.size, np.int8)
        scales = np.empty(numbers.size // row, np.float32)
        buffer = np.empty(min(rows * row, numbers.size), np.float32)
        for first in range(0, numbers.size, rows * row):
            last = min(first + rows * row, numbers.size)
            difference = np.subtract(numbers[first:last], model[first:last], out=buffer[: last - first])
            by_row = difference.reshape(-1, row)
            of_rows = scales[first // row : last // row]
            of_rows[:] = scales_of(np.maximum(by_row.max(axis=1), -by_row.min(axis=1)))
            by_row *= factors_of(of_rows)[:, None]
            round_at_random(difference, bits)
            steps[first:last] = difference
        return {name: steps, scale_name(name): scales}

    def check(self, name: str, shape: tuple[int, ...], parts: PartReader) -> None:
        """The scales; any steps will do."""
        check_scales(name, parts)

    def decoder(self, name: str, shape: tuple[int, ...], parts: PartReader) -> Decoder:
        """Multiplies steps by their scales."""
        row, scales = row_numbers(shape), parts.read(scale_name(name))

        def decode(first: int, last: int, out: Floats) -> None:
            out[:] = parts.read(name, first, last)
            multiply_rows(out, scales, row, first)

        return decode
