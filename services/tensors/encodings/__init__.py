"""Encodings of updates and models: how tensors travel, one file each, numpy only.

To add one, write its class and name it in ``ENCODINGS``; the API, the worker and the client library take it
from there.
"""

import math
from collections.abc import Mapping

from services.tensors.encodings.encoding import Encoding
from services.tensors.encodings.float16 import Float16
from services.tensors.encodings.float32 import Float32
from services.tensors.encodings.int8 import Int8
from services.tensors.encodings.int8_topk import Int8TopK

ENCODINGS: Mapping[str, type[Encoding]] = {kind.name: kind for kind in (Float32, Float16, Int8, Int8TopK)}
MODEL_ENCODINGS = tuple(name for name, kind in ENCODINGS.items() if not kind.is_difference)
"""What a model can travel in: there is nothing that it would be a difference to."""


def make_encoding(name: str, topk_fraction: float) -> Encoding:
    """The encoding of this name; the fraction matters to ``int8-topk`` only."""
    kind = ENCODINGS[name]
    return kind(topk_fraction) if issubclass(kind, Int8TopK) else kind()


def scheduled_size(encoding: Encoding, model_size_bytes: int) -> int:
    """What is scheduled for a transfer of a model of a size that is told, and not known from a file."""
    return math.ceil(model_size_bytes * encoding.size_factor)
