"""Synthetic models and updates, for load tests and scheduling studies without training.

An update is a copy of the model with some parameters changed. All updates have the same norm and random
directions, so the service accepts them as it accepts trained ones.
"""

import json
from typing import Any, ClassVar

import numpy as np

from fedcs_client.encoding import UNENCODED, TransferTerms, decode_model, encode_update
from services.errors import FedCSError

_LENGTH_BYTES = 8
_HEADER_BYTES = 504
_SHARES = {"first.weight": 0.6, "first.bias": 0.01, "second.weight": 0.38}
_LAST = "second.bias"
_SPREAD = 0.05

_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STATISTICS = ("running_mean", "running_var")
_MAX_CHANGED = 4096
_RELATIVE_STEP = 0.05
"""Relative to the tensor's norm; with much less, trained updates of the same round would be outliers."""
_STEP_FROM_ZERO = 1e-3


class SyntheticUpdateError(FedCSError):
    """The model has no tensor that can be changed."""

    cause: ClassVar[str] = "NO_SYNTHETIC_UPDATES"


def synthetic_model(model_bytes: int, seed: int) -> bytes:
    """A safetensors file of ``model_bytes``, rounded down to a multiple of 8, with four random tensors."""
    numbers = (model_bytes - _LENGTH_BYTES - _HEADER_BYTES) // 8 * 2
    lengths = {name: int(numbers * share) for name, share in _SHARES.items()}
    lengths[_LAST] = numbers - sum(lengths.values())
    entries: dict[str, Any] = {}
    begin = 0
    for name, length in lengths.items():
        end = begin + 4 * length
        entries[name] = {"dtype": "F32", "shape": [length], "data_offsets": [begin, end]}
        begin = end
    header = json.dumps(entries).encode().ljust(_HEADER_BYTES)
    drawn = np.random.default_rng(seed).standard_normal(numbers, dtype=np.float32) * np.float32(_SPREAD)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + drawn.astype("<f4").tobytes()


class SyntheticUpdates:
    """Updates of one model: reproducible, and different for each device."""

    def __init__(self, received: bytes, terms: TransferTerms = UNENCODED) -> None:
        """``received`` is the model as it travels by these terms."""
        self._received = received
        self._terms = terms
        model = decode_model(received, terms)
        self._model = memoryview(model)
        self._dtype, self._begin, length = _largest_tensor(model)
        numbers = np.frombuffer(model, self._dtype, length, self._begin)
        self._moved = numbers[:_MAX_CHANGED].astype(np.float64)
        self._end = self._begin + self._moved.size * self._dtype.itemsize
        self._step = (
            _RELATIVE_STEP * float(np.linalg.norm(numbers.astype(np.float32, copy=False))) or _STEP_FROM_ZERO
        )

    def of(self, number: int) -> bytes:
        """The update of a device."""
        direction = np.random.default_rng(number).standard_normal(self._moved.size)
        direction /= np.linalg.norm(direction)
        moved = (self._moved + self._step * direction).astype(self._dtype)
        update = b"".join((self._model[: self._begin], moved.tobytes(), self._model[self._end :]))
        return encode_update(update, self._received, self._terms, seed=number)


def _largest_tensor(model: bytes) -> tuple[np.dtype[Any], int, int]:
    """The largest floating-point tensor: its type, offset and number of elements."""
    header_bytes = int.from_bytes(model[:_LENGTH_BYTES], "little")
    data_begin = _LENGTH_BYTES + header_bytes
    header = json.loads(model[_LENGTH_BYTES:data_begin])
    found = []
    for name, entry in header.items():
        # Not the running statistics of batch normalisation: a variance must not become negative.
        if name != "__metadata__" and entry["dtype"] in _FLOATS and not name.endswith(_STATISTICS):
            begin, end = entry["data_offsets"]
            dtype = np.dtype(_FLOATS[entry["dtype"]])
            found.append(((end - begin) // dtype.itemsize, data_begin + begin, dtype))
    length, begin, dtype = max(found, key=lambda place: place[0], default=(0, 0, np.dtype("<f4")))
    if length < 2:
        raise SyntheticUpdateError(
            f"the model has no tensor of two or more numbers of type {', '.join(_FLOATS)}"
        )
    return dtype, begin, length
