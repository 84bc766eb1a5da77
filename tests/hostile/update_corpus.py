"""Updates that no honest client sends: each a body with its headers, and the answer that it deserves."""

import gzip
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from safetensors.numpy import save

from tests.integration.cell import content_digest, make_model

BAD_TENSORS = (422, "BAD_TENSORS")
TOO_LARGE = (413, "BODY_TOO_LARGE")


@dataclass(frozen=True)
class HostileUpdate:
    """A body that is no update, and the status and cause with which it is refused."""

    kind: str
    body: bytes
    expected: tuple[int, str] = BAD_TENSORS
    headers: dict[str, str | None] = field(default_factory=dict)
    """Instead of those that an honest client would send with this body; None leaves one out."""

    @property
    def is_recorded(self) -> bool:
        """Whether the round's record names it: it was read, and found to be no update."""
        return self.expected[1] in {"BAD_TENSORS", "BODY_TOO_LARGE", "DIGEST_MISMATCH"}


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file with this header, as text or to be written as JSON, however wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[Any], begin: Any, end: Any, dtype: str = "F32") -> dict[str, Any]:
    """What a header says of one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def hostile_updates(rng: random.Random) -> list[HostileUpdate]:
    """One of every kind; where there is a choice, the rng choose."""
    groups: tuple[Callable[[random.Random], Iterator[HostileUpdate]], ...] = (
        _damaged,
        _other_tensors,
        _not_finite,
        _bad_headers,
        _header_bombs,
        _other_formats,
        _lying_headers,
    )
    return [update for group in groups for update in group(rng)]


def _damaged(rng: random.Random) -> Iterator[HostileUpdate]:
    model = make_model(rng.randrange(1000))
    yield HostileUpdate("0 bytes", b"")
    yield HostileUpdate("truncated", model[: rng.randrange(1, len(model))])
    yield HostileUpdate("trailing bytes", model + rng.randbytes(rng.randrange(1, 1000)))
    yield HostileUpdate("random bytes", rng.randbytes(rng.randrange(1, 5000)))
    flipped = bytearray(model)
    flipped[rng.randrange(8, 40)] ^= 0x80  # within the header's text: no longer ASCII
    yield HostileUpdate("flipped bit in the header", bytes(flipped))
    yield HostileUpdate("larger than any such model", bytes(400_000), TOO_LARGE)


def _other_tensors(rng: random.Random) -> Iterator[HostileUpdate]:
    bias = np.zeros(8, np.float32)
    yield HostileUpdate("wrong dtype", make_model(bias=bias.astype(rng.choice(["f2", "f8", "i4", "u1"]))))
    yield HostileUpdate("wrong shape", make_model(bias=bias.reshape(rng.choice([(2, 4), (8, 1), (1, 8)]))))
    yield HostileUpdate("wrong length", make_model(bias=np.zeros(rng.choice([0, 7, 9]), np.float32)))
    yield HostileUpdate("one tensor too many", make_model(extra=bias))
    yield HostileUpdate("one tensor missing", save({"bias": bias}))
    yield HostileUpdate("other names", save({"bias ": bias, "weight": np.zeros((8, 4), np.float32)}))


def _not_finite(rng: random.Random) -> Iterator[HostileUpdate]:
    for name, value in (("NaN", np.nan), ("Inf", np.inf), ("-Inf", -np.inf)):
        bias = np.zeros(8, np.float32)
        bias[rng.randrange(8)] = value
        yield HostileUpdate(name, make_model(bias=bias))


def _bad_headers(rng: random.Random) -> Iterator[HostileUpdate]:
    good_bias, good_weight = entry([8], 0, 32), entry([8, 4], 32, 160)
    data = rng.randbytes(160)

    def with_bias(kind: str, bias: object) -> HostileUpdate:
        return HostileUpdate(kind, file_of({"bias": bias, "weight": good_weight}, data))

    twice = b'{"bias":%b,"bias":%b,"weight":%b}' % (
        *(json.dumps(item).encode() for item in (good_bias, good_bias, good_weight)),
    )
    yield HostileUpdate("duplicate keys", file_of(twice, data))
    yield HostileUpdate(
        "overlapping offsets", file_of({"bias": good_bias, "weight": entry([8, 4], 0, 128)}, data)
    )
    gap = {"bias": good_bias, "weight": entry([8, 4], 36, 164)}
    yield HostileUpdate("gap between offsets", file_of(gap, data + bytes(4)))
    yield with_bias("offsets in the wrong order", entry([8], 32, 0))
    yield with_bias("offsets beyond the end", entry([8], 160, 192))
    yield with_bias("negative offsets", entry([8], -32, 0))
    yield with_bias("huge offsets", entry([8], 2**64, 2**64 + 32))
    yield with_bias("huge shape", entry([2**62, 2**62], 0, 32))
    yield with_bias("negative shape", entry([-8], 0, 32))
    yield with_bias("shape that overflows to the right size", entry([2**61 + 2, 4], 0, 32))
    yield with_bias("fractional shape", entry([8.0], 0, 32))
    yield with_bias("true for a number", entry([True] * 3, 0, 4))
    yield with_bias("number of a thousand digits", entry([int("9" * 1000)], 0, 32))
    yield with_bias("dtype that does not exist", entry([8], 0, 32, dtype="F31"))
    yield with_bias("entry that is no object", rng.choice([None, [], "F32", 7]))
    yield HostileUpdate("header that is a list", file_of([good_bias, good_weight], data))
    yield HostileUpdate("header that is not UTF-8", file_of(b'{"\xff\xfe":{}}', data))
    yield HostileUpdate("header with a lone surrogate", file_of(b'{"\\ud800":{}}', data))
    yield HostileUpdate("header with NaN", file_of(b'{"bias":NaN}', data))


def _header_bombs(rng: random.Random) -> Iterator[HostileUpdate]:
    for length in (2**63 - 1, 2**64 - 1, 100_000_000, 256 * 1024 + 1):
        yield HostileUpdate(f"header length {length}", file_of(b"{}", rng.randbytes(100), length=length))
    yield HostileUpdate("deep header", file_of(b'{"a":' * 40_000))
    yield HostileUpdate("deep header of lists", file_of(b"[" * 200_000))
    yield HostileUpdate("header of one long name", file_of({"n" * 250_000: entry([0], 0, 0)}))
    yield HostileUpdate("4,000 empty tensors", _many_empty_tensors(4000))
    yield HostileUpdate("300,000 empty tensors", _many_empty_tensors(300_000), TOO_LARGE)
    yield HostileUpdate("a header of spaces", file_of(b" " * 262_000))


@cache
def _many_empty_tensors(number: int) -> bytes:
    """Made once: a load test sends it often."""
    empty = json.dumps(entry([0], 0, 0)).encode()
    return file_of(b"{" + b",".join(b'"%d":%b' % (name, empty) for name in range(number)) + b"}")


@cache
def _gzip_bomb() -> bytes:
    return gzip.compress(bytes(20_000_000))


class _Runs:
    """What a pickle can do to those who load it."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, ("raise SystemExit('a pickle was loaded')",)


def _other_formats(rng: random.Random) -> Iterator[HostileUpdate]:
    yield HostileUpdate("pickle", pickle.dumps(_Runs()))
    yield HostileUpdate("pickle behind a length", file_of(pickle.dumps(_Runs())))
    yield HostileUpdate("zip, as torch saves it", b"PK\x03\x04" + rng.randbytes(500))
    bomb = _gzip_bomb()
    yield HostileUpdate("gzip bomb", bomb)
    for coding in ("gzip", "deflate", "br, gzip"):
        expected = (415, "UNSUPPORTED_MEDIA_TYPE")
        yield HostileUpdate(f"Content-Encoding: {coding}", bomb, expected, {"content_encoding": coding})


def _lying_headers(rng: random.Random) -> Iterator[HostileUpdate]:
    model = make_model(rng.randrange(1000))
    other = content_digest(model + b" ")["Content-Digest"]
    yield HostileUpdate("wrong digest", model, (422, "DIGEST_MISMATCH"), {"content_digest": other})
    for kind, headers in (
        ("no digest", {"content_digest": None}),
        ("digest that is none", {"content_digest": "sha-256=:AAAA:"}),
        ("digest of another kind", {"content_digest": "md5=:" + "A" * 22 + "==:"}),
        ("digest of another kind that ends alike", {"content_digest": "a-" + other}),
        ("no samples", {"fedcs_data_samples": None}),
        ("negative samples", {"fedcs_data_samples": "-1"}),
        ("samples without end", {"fedcs_data_samples": "9" * 5000}),
        ("infinite time", {"fedcs_elapsed_s": rng.choice(["Infinity", "NaN", "1e999", "-1"])}),
    ):
        yield HostileUpdate(kind, model, (422, "INVALID_REQUEST"), dict(headers))
