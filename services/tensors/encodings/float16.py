"""``float16``: parameters in half precision, rounded up or down at random so that the mean stays right.

Rounded to the nearest, a model that travels in half precision would never move by less than half a step.
"""

from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from services.tensors.encodings.encoding import Decoder, Encoding, Floats, PartReader, RandomBits
from services.tensors.layout import TensorSpec

_LARGEST = np.float32(65504)
_LEAST_NORMAL = np.float32(2.0**-14)
_LEAST_STEP = np.float32(2.0**-24)
_DROPPED_BITS = np.uint32(13)
_CHUNK = 64 * 1024


class Float16(Encoding):
    """Half of the bits. Numbers beyond half precision become the largest that it has."""

    name: ClassVar[str] = "float16"
    summary: ClassVar[str] = "All parameters in half precision: half the size."

    @property
    def size_factor(self) -> Fraction:
        """A half."""
        return Fraction(1, 2)

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """One tensor of the same shape."""
        return {name: TensorSpec("F16", shape)}

    def encode(
        self, name: str, shape: tuple[int, ...], numbers: Floats, model: Floats | None, bits: RandomBits
    ) -> dict[str, npt.NDArray[Any]]:
        """Round each number to one of its two neighbours, the nearer one the more often."""
        encoded = np.empty(numbers.size, "<f2")
        for first in range(0, numbers.size, _CHUNK):
            given = np.clip(numbers[first : first + _CHUNK], -_LARGEST, _LARGEST)
            random = bits.draw(given.size)
            # Of a float, the bits that go beyond half precision are a fraction of its step.
            patterns = given.view(np.uint32) + (random >> 3)
            patterns = patterns >> _DROPPED_BITS << _DROPPED_BITS
            rounded = patterns.view(np.float32)
            tiny = np.flatnonzero(np.abs(given) < _LEAST_NORMAL)  # there all steps are the same
            fraction = (random[tiny] + np.float32(0.5)) / np.float32(65536)
            rounded[tiny] = np.floor(given[tiny] / _LEAST_STEP + fraction) * _LEAST_STEP
            encoded[first : first + _CHUNK] = rounded
        return {name: encoded}

    def decoder(self, name: str, shape: tuple[int, ...], parts: PartReader) -> Decoder:
        """Reads the tensor."""

        def decode(first: int, last: int, out: Floats) -> None:
            out[:] = parts.read(name, first, last)

        return decode
