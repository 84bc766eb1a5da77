"""Encoded transfers on the client's side: the model as it is downloaded, and the update as it is sent."""

import secrets
from dataclasses import dataclass
from typing import Protocol

from services.tensors.encoded_files import decode_float16, encode_file
from services.tensors.encodings import make_encoding


class TransferTerms(Protocol):
    """The encodings of a round's model and updates; assignments, schedules and tasks have them."""

    @property
    def model_encoding(self) -> str:
        """Of the model."""

    @property
    def update_encoding(self) -> str:
        """Of updates."""

    @property
    def topk_fraction(self) -> float:
        """The share of each tensor's differences that a sparse encoding sends."""


@dataclass(frozen=True)
class _Unencoded:
    model_encoding: str = "float32"
    update_encoding: str = "float32"
    topk_fraction: float = 0.1


UNENCODED: TransferTerms = _Unencoded()
"""Models and updates are not encoded."""


def decode_model(content: bytes, terms: TransferTerms) -> bytes:
    """A downloaded model as a safetensors file with its parameters in single precision."""
    return decode_float16(content) if terms.model_encoding == "float16" else content


def encode_update(update: bytes, received: bytes, terms: TransferTerms, *, seed: int | None = None) -> bytes:
    """An update as it is sent; ``update`` is the trained network as a safetensors file.

    ``received`` is the model as it was downloaded. Rounding is random; the same seed gives the same bytes.
    """
    if terms.update_encoding == "float32":
        return update
    encoding = make_encoding(terms.update_encoding, terms.topk_fraction)
    seed = secrets.randbits(62) if seed is None else seed
    return b"".join(encode_file(encoding, update, seed=seed, received=received))
