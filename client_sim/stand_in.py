"""Models and updates that nobody trained, for studies of load and scheduling.

An update is the model itself with a few numbers moved, so it costs hardly more than a copy. All devices move
them equally far, each in its own direction: to the service's eyes they are honest clients that disagree.
"""

import json
from typing import Any, ClassVar

import numpy as np

from services.errors import FedCSError

_LENGTH_BYTES = 8
_HEADER_BYTES = 504
_SHARES = {"first.weight": 0.6, "first.bias": 0.01, "second.weight": 0.38}
_LAST = "second.bias"
_SPREAD = 0.05

_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_STATISTICS = ("running_mean", "running_var")
_MOST_MOVED = 4096
_RELATIVE_STEP = 0.05
"""Of the tensor's length. Were it much shorter, updates that others trained would be out of proportion."""
_STEP_FROM_ZERO = 1e-3


class StandInError(FedCSError):
    """No stand-in update can be made of this model."""

    cause: ClassVar[str] = "NO_STAND_IN"


def stand_in_model(model_bytes: int, seed: int) -> bytes:
    """A model file of so many bytes, rounded down to a multiple of 8: four tensors of small random floats."""
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


class StandInUpdates:
    """Updates to one model: another one for each device, and always the same for the same device."""

    def __init__(self, model: bytes) -> None:
        self._model = memoryview(model)
        self._dtype, self._begin, length = _most_numbers(model)
        numbers = np.frombuffer(model, self._dtype, length, self._begin)
        self._moved = numbers[:_MOST_MOVED].astype(np.float64)
        self._end = self._begin + self._moved.size * self._dtype.itemsize
        self._step = (
            _RELATIVE_STEP * float(np.linalg.norm(numbers.astype(np.float32, copy=False))) or _STEP_FROM_ZERO
        )

    def of(self, number: int) -> bytes:
        """The update of the device of this number."""
        direction = np.random.default_rng(number).standard_normal(self._moved.size)
        direction /= np.linalg.norm(direction)
        moved = (self._moved + self._step * direction).astype(self._dtype)
        return b"".join((self._model[: self._begin], moved.tobytes(), self._model[self._end :]))


def _most_numbers(model: bytes) -> tuple[np.dtype[Any], int, int]:
    """The parameters that can be moved best: their type, where they begin, and how many there are."""
    header_bytes = int.from_bytes(model[:_LENGTH_BYTES], "little")
    data_begin = _LENGTH_BYTES + header_bytes
    header = json.loads(model[_LENGTH_BYTES:data_begin])
    found = []
    for name, entry in header.items():
        # The running statistics of batch normalisation are left alone: a variance must not become negative.
        if name != "__metadata__" and entry["dtype"] in _FLOATS and not name.endswith(_STATISTICS):
            begin, end = entry["data_offsets"]
            dtype = np.dtype(_FLOATS[entry["dtype"]])
            found.append(((end - begin) // dtype.itemsize, data_begin + begin, dtype))
    length, begin, dtype = max(found, key=lambda place: place[0], default=(0, 0, np.dtype("<f4")))
    if length < 2:
        raise StandInError(f"the model has no tensor of two or more numbers of type {', '.join(_FLOATS)}")
    return dtype, begin, length
