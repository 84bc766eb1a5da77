"""``float32``: every tensor travels as it is in the model."""

from fractions import Fraction
from typing import Any, ClassVar

import numpy.typing as npt

from services.tensors.encodings.encoding import Decoder, Encoding, Floats, PartReader, RandomBits
from services.tensors.layout import Layout, TensorSpec


class Float32(Encoding):
    """Encodes nothing."""

    name: ClassVar[str] = "float32"
    summary: ClassVar[str] = "All parameters, as they are in the model."

    @property
    def size_factor(self) -> Fraction:
        """The model's own size."""
        return Fraction(1)

    def encodes(self, name: str, model: Layout) -> bool:
        """No tensor."""
        return False

    def encoded_layout(self, model: Layout) -> Layout:
        """The same."""
        return model

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The tensor."""
        return {name: TensorSpec("F32", shape)}

    def encode(
        self, name: str, shape: tuple[int, ...], numbers: Floats, model: Floats | None, bits: RandomBits
    ) -> dict[str, npt.NDArray[Any]]:
        """The tensor."""
        return {name: numbers}

    def decoder(self, name: str, shape: tuple[int, ...], parts: PartReader) -> Decoder:
        """Reads the tensor."""

        def decode(first: int, last: int, out: Floats) -> None:
            out[:] = parts.read(name, first, last)

        return decode
