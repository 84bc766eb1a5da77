"""Whole files in an encoding: made of a model or an update, checked on arrival, and read block by block."""

from pathlib import Path

import numpy as np

from services.errors import BadTensorsError
from services.tensors.blocks import Block, BlockBuffer, BlockSource, FloatArray, TensorFile
from services.tensors.encodings.encoding import Decoder, Encoding, Floats, PartReader, RandomBits
from services.tensors.layout import (
    Layout,
    TensorSpec,
    check_finite,
    check_same_layout,
    encode_header,
    read_layout,
    split_file,
    tensor_positions,
)


def encode_file(
    encoding: Encoding, content: bytes, *, seed: int, received: bytes | None = None
) -> list[bytes | memoryview]:
    """A model or an update as it travels, in pieces: ``content`` is its safetensors file.

    ``received`` is the model as the client received it, which a difference is taken to. The same seed gives
    the same bytes.
    """
    layout, data = split_file(content)
    model = _Tensors(*split_file(received)) if encoding.is_difference and received is not None else None
    if encoding.is_difference and model is None:
        raise ValueError(f"{encoding.name} carries a difference: the model is needed")
    if model is not None:
        _check_same_shapes(layout, model.layout)
    tensors = _Tensors(layout, data)
    encoded = encoding.encoded_layout(layout)
    bits = RandomBits(seed)
    parts: dict[str, bytes | memoryview] = {}
    with np.errstate(all="ignore"):  # what is not finite is refused where it arrives
        for name, spec in layout.items():
            if not encoding.encodes(name, layout):
                parts[name] = tensors.bytes_of(name)
                continue
            own = None if model is None else model.floats(name)
            made = encoding.encode(name, spec.shape, tensors.floats(name), own, bits)
            parts |= {part: array.data.cast("B") for part, array in made.items()}
    return [encode_header(encoded), *(parts[name] for name in encoded)]


def decode_float16(content: bytes) -> bytes:
    """A file that travelled in ``float16``, with its parameters in single precision again."""
    layout, data = split_file(content)
    tensors = _Tensors(layout, data)
    decoded: dict[str, TensorSpec] = {}
    pieces: list[bytes | memoryview] = []
    for name, spec in layout.items():
        if spec.dtype == "F16":
            decoded[name] = TensorSpec("F32", spec.shape)
            pieces.append(tensors.floats(name).tobytes())
        else:
            decoded[name] = spec
            pieces.append(tensors.bytes_of(name))
    return b"".join([encode_header(decoded), *pieces])


def check_encoded(path: Path, encoding: Encoding, model: Layout) -> None:
    """Refuse a file that is not an update to a model of this layout in this encoding."""
    check_same_layout(read_layout(path), encoding.encoded_layout(model))
    check_finite(path)
    parts = PartReader(path)
    with path.open("rb") as file:
        parts.descriptor = file.fileno()
        for name, spec in model.items():
            if encoding.encodes(name, model):
                encoding.check(name, spec.shape, parts)


class EncodedFile(TensorFile):
    """A file in an encoding, decoded block by block; ``model`` is what a difference is added to."""

    def __init__(
        self,
        path: Path,
        buffer: BlockBuffer,
        layout: Layout,
        encoding: Encoding,
        model: BlockSource | None = None,
    ) -> None:
        super().__init__(path, buffer)
        self._encoding = encoding
        self._encoded = {name: spec.shape for name, spec in layout.items() if encoding.encodes(name, layout)}
        self._model = model if encoding.is_difference else None
        self._parts = PartReader(path)
        self._decoders: dict[str, Decoder] = {}

    def __enter__(self) -> "EncodedFile":
        super().__enter__()
        self._parts.descriptor = self._descriptor
        return self

    def read(self, block: Block) -> FloatArray:
        """The numbers of a block, lent until the buffer is used again."""
        if not self._encoded or not any(segment.name in self._encoded for segment in block.segments):
            return super().read(block)
        if self._descriptor is None:
            with self:
                return self.read(block)
        out = self._buffer.decoded[: block.size]
        own = None if self._model is None else self._model.read(block)
        filled = 0
        for name, first, last in block.segments:
            room = slice(filled, filled + last - first)
            filled += last - first
            if name not in self._encoded:
                out[room] = self._parts.read(name, first, last)
                continue
            self._decoder(name)(first, last, out[room])
            if own is not None:
                out[room] += own[room]
        return out

    def _decoder(self, name: str) -> Decoder:
        if name not in self._decoders:
            self._decoders[name] = self._encoding.decoder(name, self._encoded[name], self._parts)
        return self._decoders[name]


class _Tensors:
    """The tensors of a file in memory."""

    def __init__(self, layout: Layout, data: memoryview) -> None:
        self.layout = layout
        self._data = data
        self._positions = tensor_positions(layout, 0)

    def bytes_of(self, name: str) -> memoryview:
        begin = self._positions[name]
        return self._data[begin : begin + self.layout[name].size_bytes]

    def floats(self, name: str) -> Floats:
        """The numbers of a tensor in single or half precision."""
        dtype = PartReader.dtypes[self.layout[name].dtype]
        return np.frombuffer(self.bytes_of(name), dtype).astype(np.float32, copy=False)


def _check_same_shapes(update: Layout, model: Layout) -> None:
    if {name: spec.shape for name, spec in update.items()} != {
        name: spec.shape for name, spec in model.items()
    }:
        raise BadTensorsError("the update and the model do not have the same tensors")
