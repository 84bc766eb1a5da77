"""JSON bodies that no honest caller sends, for an operation that takes this honest one."""

import gzip
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MALFORMED = (400, "MALFORMED_JSON")
INVALID = (422, "INVALID_REQUEST")
UNSUPPORTED = (415, "UNSUPPORTED_MEDIA_TYPE")


@dataclass(frozen=True)
class HostileBody:
    """A body, and the status and cause with which it is refused."""

    kind: str
    body: bytes
    expected: tuple[int, str] = INVALID
    headers: dict[str, str] = field(default_factory=dict)


def hostile_bodies(honest: Mapping[str, Any], rng: random.Random) -> list[HostileBody]:
    """One of every kind; the rng choose which of the fields is spoilt."""
    return [*_no_json(honest, rng), *_wrong_values(honest, rng), *_large(honest, rng)]


def _no_json(honest: Mapping[str, Any], rng: random.Random) -> Iterator[HostileBody]:
    text = json.dumps(honest).encode()
    yield HostileBody("nothing", b"")
    yield HostileBody("truncated", text[: rng.randrange(1, len(text))], MALFORMED)
    yield HostileBody("trailing bytes", text + b"}", MALFORMED)
    yield HostileBody("two values", text + text, MALFORMED)
    yield HostileBody("deep lists", b"[" * 60_000, MALFORMED)
    yield HostileBody("deep objects", b'{"a":' * 12_000, MALFORMED)
    yield HostileBody("deep and closed", b"[" * 30_000 + b"]" * 30_000, MALFORMED)
    yield HostileBody("invalid UTF-8", text.replace(b'"', b'"\xff', 1), MALFORMED)
    yield HostileBody("overlong UTF-8", text.replace(b'"', b'"\xc0\xaf', 1), MALFORMED)
    yield HostileBody("BOM", b"\xef\xbb\xbf" + text, MALFORMED)
    yield HostileBody("UTF-16", json.dumps(honest).encode("utf-16"), MALFORMED)
    yield HostileBody("NUL bytes", b"\0" * 100 + text, MALFORMED)
    yield HostileBody("lone surrogate in a name", b'{"\\ud800": 1}', MALFORMED)
    yield HostileBody("lone surrogate in a value", b'{"client_id": "\\udc00"}', MALFORMED)
    yield HostileBody("gzip", gzip.compress(text), MALFORMED)
    coded = {"content_encoding": "gzip"}
    yield HostileBody("Content-Encoding: gzip", gzip.compress(text), UNSUPPORTED, coded)
    for media_type in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "nonsense"):
        yield HostileBody(f"as {media_type}", text, UNSUPPORTED, {"content_type": media_type})


def _wrong_values(honest: Mapping[str, Any], rng: random.Random) -> Iterator[HostileBody]:
    number = rng.choice([name for name, value in honest.items() if type(value) in (int, float)])
    for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"9" * 4000, b"1" + b"0" * 5000):
        yield HostileBody(f"{value[:9].decode()} for a number", _with(honest, number, value), _for(value))
    for value in (b"null", b"true", b'"7"', b"[]", b"{}", b'"\\u0000"', b'[[["x"]]]'):
        yield HostileBody(f"{value.decode()} for a number", _with(honest, number, value))
    text = rng.choice([name for name, value in honest.items() if isinstance(value, str)])
    for value in (b"null", b"1", b'"\\u0000"', b'"' + b"x" * 10_000 + b'"', b'""', b'"%00\\n"'):
        yield HostileBody(f"{value[:20].decode()} for a text", _with(honest, text, value))
    for name in ("__class__", "$ref", "x" * 10_000, "\0", "a/b~c"):
        yield HostileBody(f"unknown field {name[:12]!r}", json.dumps({**honest, name: 1}).encode())
    missing = rng.choice(list(honest))
    without = {name: value for name, value in honest.items() if name != missing}
    yield HostileBody("a field missing", json.dumps(without).encode())
    yield HostileBody("a list of it", json.dumps([honest]).encode())
    yield HostileBody("null", b"null")
    # Of a name that comes twice the last counts, as in most parsers: here it is the wrong one.
    twice = _with(honest, number, b"1")[:-1] + f', "{number}": "no"}}'.encode()
    yield HostileBody("duplicate keys", twice)


def _large(honest: Mapping[str, Any], rng: random.Random) -> Iterator[HostileBody]:
    too_large = (413, "BODY_TOO_LARGE")
    megabytes = rng.randrange(1, 6) * 1_000_000
    name = next(iter(honest))
    yield HostileBody(
        "megabytes of one string", _with(honest, name, b'"' + b"x" * megabytes + b'"'), too_large
    )
    yield HostileBody("megabytes of empty lists", b"[" + b"[]," * 1_000_000 + b"[]]", too_large)
    yield HostileBody("megabytes of spaces", b" " * megabytes + json.dumps(honest).encode(), too_large)


def _for(value: bytes) -> tuple[int, str]:
    return MALFORMED if len(value) > 4300 else INVALID


def _with(honest: Mapping[str, Any], name: str, value: bytes) -> bytes:
    """The body with this text in the place of one value."""
    mark = "the only place with this text"
    return json.dumps({**honest, name: mark}).encode().replace(json.dumps(mark).encode(), value)
