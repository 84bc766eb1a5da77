"""Files of tensors in the safetensors format: the checks that a stranger's file must pass before it is used.

To read and write tensors, use the ``safetensors`` package itself. On its own it takes numbers that are not
finite and keys that come twice, and it can be kept busy for seconds with a header of empty tensors.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from services.errors import BadTensorsError

MAX_HEADER_BYTES = 256 * 1024
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 2**59
"""Times the largest element, this is less than 2**63: what numpy and safetensors can count to."""

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
_WIDE_FLOATS = {"F32": "<f4", "F64": "<f8"}
_NARROW_EXPONENTS = {"F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}
"""The exponent bits: all of them are set in numbers that are not finite, and only there."""
_CHUNK_BYTES = 512 * 1024


@dataclass(frozen=True)
class TensorSpec:
    """The element type of a tensor, as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """What its elements take in a file."""
        return math.prod(self.shape) * _ELEMENT_BYTES[self.dtype]


Layout: TypeAlias = Mapping[str, TensorSpec]
"""The tensors of a file by name, in the order in which their bytes lie there."""


def data_bytes(layout: Layout) -> int:
    """What all tensors together take in a file, not counting the header."""
    return sum(spec.size_bytes for spec in layout.values())


def largest_file(layout: Layout) -> int:
    """The most bytes that a file with this layout can have."""
    return _LENGTH_BYTES + MAX_HEADER_BYTES + data_bytes(layout)


def read_layout(path: Path) -> Layout:
    """Read which tensors a file holds, and check that it holds nothing else."""
    return _read_layout(path)[0]


def locate(path: Path) -> Mapping[str, tuple[TensorSpec, int]]:
    """Which tensors a file holds, and where in it each begins; in the order of their bytes."""
    layout, begin = _read_layout(path)
    places = {}
    for name, spec in layout.items():
        places[name] = (spec, begin)
        begin += spec.size_bytes
    return places


def check_same_layout(given: Layout, expected: Layout) -> None:
    """Refuse tensors other than the expected ones; the order does not matter."""
    for name in expected:
        if name not in given:
            raise BadTensorsError(f"{_tensor(name)} is missing")
    for name in given:
        if name not in expected:
            raise BadTensorsError(f"{_tensor(name)} is not expected")
    for name, spec in expected.items():
        if given[name].dtype != spec.dtype:
            raise BadTensorsError(f"{_tensor(name)}: dtype {given[name].dtype}, expected {spec.dtype}")
        if given[name].shape != spec.shape:
            shape = list(given[name].shape)
            raise BadTensorsError(f"{_tensor(name)}: shape {shape}, expected {list(spec.shape)}")


def check_finite(path: Path) -> None:
    """Refuse a file with a number that is infinite or not a number."""
    layout, data_begin = _read_layout(path)
    buffer = np.empty(_CHUNK_BYTES, np.uint8)
    # Not mapped into memory: that is hardly faster, counts as this process's, and a bad disk would kill it.
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
                    raise BadTensorsError(f"{_tensor(name)}: not all numbers are finite")


def _all_finite(chunk: npt.NDArray[np.uint8], dtype: str) -> bool:
    if dtype in _WIDE_FLOATS:
        return bool(np.isfinite(chunk.view(_WIDE_FLOATS[dtype])).all())
    # For F16, np.isfinite takes ten times as long; and numpy has no BF16.
    exponent = _NARROW_EXPONENTS[dtype]
    return bool((chunk.view("<u2") & exponent).max() < exponent)


def _read_layout(path: Path) -> tuple[Layout, int]:
    """The layout, and the position in the file where the data begins."""
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data_begin = _LENGTH_BYTES + header_bytes
        if file_bytes < _LENGTH_BYTES:
            raise BadTensorsError("the file is too short to be a safetensors file")
        # Before anything is parsed: parsing takes long, and so does making room for what was never sent.
        if not 2 <= header_bytes <= MAX_HEADER_BYTES:
            raise BadTensorsError(f"a header of {header_bytes} bytes; 2 to {MAX_HEADER_BYTES} are allowed")
        if data_begin > file_bytes:
            raise BadTensorsError(f"a header of {header_bytes} bytes in a file of {file_bytes}")
        return _layout_in(file.read(header_bytes), file_bytes - data_begin), data_begin


@lru_cache(maxsize=16)
def _layout_in(header: bytes, available_bytes: int) -> Layout:
    """The layout that a header describes. The files of a round have one and the same: it is parsed once."""
    return MappingProxyType(_place(_parse_header(header), available_bytes))


def _parse_header(text: bytes) -> dict[str, object]:
    """The entries of the tensors, not looked into yet."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates, parse_int=_whole_number)
        # JSON can escape half a character, which is no part of a name and cannot be sent back.
        json.dumps(header, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadTensorsError(f"the header is not valid JSON: {error}") from error
    if not isinstance(header, dict) or not text.startswith(b"{"):
        raise BadTensorsError("the header does not start with {")
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
            raise BadTensorsError(f"{_shortened(name)} comes twice in the header")
        entries[name] = value
    return entries


def _whole_number(digits: str) -> int | None:
    """Nothing for a number below zero (even "-0") or too long for 64 bits: no header may hold one."""
    return None if digits.startswith("-") or len(digits) > 19 else int(digits)


def _place(header: dict[str, object], available_bytes: int) -> dict[str, TensorSpec]:
    """Put the tensors in the order of their bytes, and check that these fill the data exactly."""
    found = [(*_read_entry(name, entry), name) for name, entry in header.items()]
    layout: dict[str, TensorSpec] = {}
    position = 0
    for begin, end, spec, name in sorted(found, key=lambda entry: entry[:2]):
        if begin != position:
            fault = "leaves a gap after" if begin > position else "overlaps"
            raise BadTensorsError(f"{_tensor(name)} {fault} what lies before it")
        layout[name] = spec
        position = end
    if position != available_bytes:
        raise BadTensorsError(f"the tensors take {position} bytes, and the file holds {available_bytes}")
    return layout


def _read_entry(name: str, entry: object) -> tuple[int, int, TensorSpec]:
    """Where the tensor begins and ends, and what it is."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadTensorsError(f"{_tensor(name)}: not described by dtype, shape and data_offsets alone")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
        raise BadTensorsError(f"{_tensor(name)}: dtype is none of {', '.join(_ELEMENT_BYTES)}")
    if not _are_whole_numbers(shape) or len(shape) > _MAX_DIMENSIONS:
        raise BadTensorsError(
            f"{_tensor(name)}: shape is not a list of up to {_MAX_DIMENSIONS} whole numbers"
        )
    # Zeros do not help: numpy and safetensors multiply from left to right, and fail at what the rest makes.
    if math.prod(length or 1 for length in shape) > _MAX_ELEMENTS:
        raise BadTensorsError(f"{_tensor(name)}: shape is too large")
    if not _are_whole_numbers(offsets) or len(offsets) != 2:
        raise BadTensorsError(f"{_tensor(name)}: data_offsets are not two whole numbers")
    spec = TensorSpec(dtype, tuple(shape))
    begin, end = offsets
    if end - begin != spec.size_bytes:
        raise BadTensorsError(f"{_tensor(name)}: {end - begin} bytes, and its shape takes {spec.size_bytes}")
    return begin, end, spec


def _are_whole_numbers(value: object) -> TypeGuard[list[int]]:
    # Not isinstance: true and false are instances of int.
    return isinstance(value, list) and all(type(number) is int for number in value)


def _tensor(name: str) -> str:
    return f"tensor {_shortened(name)}"


def _shortened(name: str) -> str:
    """In quotes; a stranger's name may be as long as a header, and hold anything."""
    return repr(name if len(name) <= 200 else name[:199] + "…")
