"""Safetensors files: the header with its tensors and offsets, and the checks of received files."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from services.errors import BadTensorsError


class TensorKind(StrEnum):
    """The kind of a tensor."""

    PARAMETERS = "parameters"
    MEANS = "running means"
    VARIANCES = "running variances"
    COUNTERS = "counters"


_ENDINGS = {
    "running_mean": TensorKind.MEANS,
    "running_var": TensorKind.VARIANCES,
    "num_batches_tracked": TensorKind.COUNTERS,
}


def kind_of(tensor_name: str) -> TensorKind:
    """The kind of a tensor, by its name in torch modules."""
    for ending, kind in _ENDINGS.items():
        if tensor_name.endswith(ending):
            return kind
    return TensorKind.PARAMETERS


MAX_HEADER_BYTES = 256 * 1024
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 2**59
"""The size in bytes stays below 2**63, the limit of numpy and safetensors."""

_ELEMENT_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
}


@dataclass(frozen=True)
class TensorSpec:
    """The element type of a tensor, as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of its elements in a file."""
        return math.prod(self.shape) * _ELEMENT_BYTES[self.dtype]


Layout: TypeAlias = Mapping[str, TensorSpec]
"""The tensors of a file by name, in the order of their data."""


def data_bytes(layout: Layout) -> int:
    """Size of all tensors in a file, without the header."""
    return sum(spec.size_bytes for spec in layout.values())


def tensor_positions(layout: Layout, begin: int) -> Mapping[str, int]:
    """Where each tensor begins, in a file whose data begin at this position."""
    positions = {}
    for name, spec in layout.items():
        positions[name] = begin
        begin += spec.size_bytes
    return positions


def largest_file(layout: Layout) -> int:
    """Maximum size of a file with this layout."""
    return _LENGTH_BYTES + MAX_HEADER_BYTES + data_bytes(layout)


def read_layout(path: Path) -> Layout:
    """Read and check the layout of a file."""
    return locate_data(path)[0]


def locate_data(path: Path) -> tuple[Layout, int]:
    """The checked layout of a file, and the offset of its data."""
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_begin = _LENGTH_BYTES + header_bytes
        if file_bytes < _LENGTH_BYTES:
            raise BadTensorsError("not a safetensors file: it is too short")
        # Before parsing, which takes time and memory in proportion to the header.
        if not 2 <= header_bytes <= MAX_HEADER_BYTES:
            raise BadTensorsError(
                f"not a safetensors file: its first 8 bytes announce a header of {header_bytes} bytes; 2 to "
                f"{MAX_HEADER_BYTES} are allowed"
            )
        if data_begin > file_bytes:
            raise BadTensorsError(
                f"not a safetensors file, or cut off: a header of {header_bytes} bytes in a file of "
                f"{file_bytes}"
            )
        return _layout_in(file.read(header_bytes), file_bytes - data_begin), data_begin


def split_file(content: bytes) -> tuple[Layout, memoryview]:
    """The checked layout of a file in memory, and the data of its tensors."""
    data_begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    if not _LENGTH_BYTES + 2 <= data_begin <= min(len(content), _LENGTH_BYTES + MAX_HEADER_BYTES):
        raise BadTensorsError("the content is not a safetensors file")
    data = memoryview(content)[data_begin:]
    return _layout_in(content[_LENGTH_BYTES:data_begin], len(data)), data


def encode_header(layout: Layout) -> bytes:
    """The bytes of a file before the data of its first tensor, as the ``safetensors`` package writes them."""
    entries, position = {}, 0
    for name, spec in layout.items():
        end = position + spec.size_bytes
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


@lru_cache(maxsize=16)
def _layout_in(header: bytes, available_bytes: int) -> Layout:
    """The layout of a header, cached because the files of a round have the same header."""
    return MappingProxyType(_place(_parse_header(header), available_bytes))


def _parse_header(text: bytes) -> dict[str, object]:
    """The unchecked entries of the tensors."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates, parse_int=_whole_number)
        # JSON can contain lone surrogates, which cannot be encoded.
        json.dumps(header, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadTensorsError(f"not a safetensors file: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict) or not text.startswith(b"{"):
        raise BadTensorsError("not a safetensors file: the header does not start with {")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadTensorsError("__metadata__ is not a map of texts to texts")
    if not header:
        raise BadTensorsError("the file holds no tensors")
    return header


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries: dict[str, object] = {}
    for name, value in pairs:
        if name in entries:
            raise BadTensorsError(f"{_shortened(name)} is in the header twice")
        entries[name] = value
    return entries


def _whole_number(digits: str) -> int | None:
    """None for a negative number (even "-0") or one above 64 bits, which is not allowed."""
    return None if digits.startswith("-") or len(digits) > 19 else int(digits)


def _place(header: dict[str, object], available_bytes: int) -> dict[str, TensorSpec]:
    """Sort the tensors by offset, and check that they fill the data exactly."""
    found = [(*_read_entry(name, entry), name) for name, entry in header.items()]
    layout: dict[str, TensorSpec] = {}
    position = 0
    for begin, end, spec, name in sorted(found, key=lambda entry: entry[:2]):
        if begin != position:
            fault = "leaves a gap after" if begin > position else "overlaps"
            raise BadTensorsError(f"{tensor_text(name)} {fault} the tensor before it")
        layout[name] = spec
        position = end
    if position != available_bytes:
        raise BadTensorsError(f"the tensors take {position} bytes, and the file holds {available_bytes}")
    return layout


def _read_entry(name: str, entry: object) -> tuple[int, int, TensorSpec]:
    """Offsets and spec of a tensor."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadTensorsError(f"{tensor_text(name)}: not described by dtype, shape and data_offsets alone")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise BadTensorsError(f"{tensor_text(name)}: dtype is none of {', '.join(_ELEMENT_BYTES)}")
    if not _are_whole_numbers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise BadTensorsError(
            f"{tensor_text(name)}: shape is not a list of up to {_MAX_DIMENSIONS} whole numbers"
        )
    # Zeros are ignored: numpy and safetensors multiply from left to right and overflow before a zero.
    if math.prod(length or 1 for length in shape) > _MAX_ELEMENTS:
        raise BadTensorsError(f"{tensor_text(name)}: shape is too large")
    if not _are_whole_numbers(offsets) or len(offsets) != 2:
        raise BadTensorsError(f"{tensor_text(name)}: data_offsets are not two whole numbers")
    spec = TensorSpec(dtype, tuple(shape))
    begin, end = offsets
    if end - begin != spec.size_bytes:
        raise BadTensorsError(
            f"{tensor_text(name)}: {end - begin} bytes, and its shape takes {spec.size_bytes}"
        )
    return begin, end, spec


def _are_whole_numbers(value: object) -> TypeGuard[list[int]]:
    # Not isinstance: true and false are instances of int.
    return isinstance(value, list) and all(type(number) is int for number in value)


def tensor_text(name: str) -> str:
    """A tensor in error messages."""
    return f"tensor {_shortened(name)}"


def _shortened(name: str) -> str:
    """The quoted name, truncated: it comes from an untrusted file."""
    return repr(name if len(name) <= 200 else name[:199] + "…")


_WIDE_FLOATS = {"F32": "<f4", "F64": "<f8"}
_NARROW_EXPONENTS = {"F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}
"""The exponent bits, which are all set only in numbers that are not finite."""
_CHUNK_BYTES = 512 * 1024


def check_same_layout(given: Layout, expected: Layout) -> None:
    """Refuse a layout that differs from the expected one; the order does not matter."""
    for name in expected:
        if name not in given:
            raise BadTensorsError(f"{tensor_text(name)} is missing")
    for name in given:
        if name not in expected:
            raise BadTensorsError(f"{tensor_text(name)} is not expected")
    for name, spec in expected.items():
        if given[name].dtype != spec.dtype:
            raise BadTensorsError(f"{tensor_text(name)}: dtype {given[name].dtype}, expected {spec.dtype}")
        if given[name].shape != spec.shape:
            shape = list(given[name].shape)
            raise BadTensorsError(f"{tensor_text(name)}: shape {shape}, expected {list(spec.shape)}")


def check_finite(path: Path) -> None:
    """Refuse a file with infinite or NaN values."""
    layout, data_begin = locate_data(path)
    buffer = np.empty(_CHUNK_BYTES, np.uint8)
    # Not memory-mapped: that is hardly faster, and a disk error would kill the process.
    with path.open("rb") as file:
        file.seek(data_begin)
        for name, spec in layout.items():
            if spec.dtype not in _WIDE_FLOATS and spec.dtype not in _NARROW_EXPONENTS:
                file.seek(spec.size_bytes, os.SEEK_CUR)
                continue
            for start in range(0, spec.size_bytes, _CHUNK_BYTES):
                chunk = buffer[: min(_CHUNK_BYTES, spec.size_bytes - start)]
                file.readinto(chunk.data)
                if not _all_finite(chunk, spec.dtype):
                    raise BadTensorsError(f"{tensor_text(name)}: not all numbers are finite")


def _all_finite(chunk: npt.NDArray[np.uint8], dtype: str) -> bool:
    if dtype in _WIDE_FLOATS:
        return bool(np.isfinite(chunk.view(_WIDE_FLOATS[dtype])).all())
    # For F16, np.isfinite takes ten times as long; and numpy has no BF16.
    exponent = _NARROW_EXPONENTS[dtype]
    return bool((chunk.view("<u2") & exponent).max() < exponent)
