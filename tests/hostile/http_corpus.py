"""Requests that are wrong as HTTP, or ask for what is not there; each with the answers that it may get.

An application can only refuse what the server could read; of the rest the server says 400 itself, or closes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile.raw_http import NO_ANSWER, bearer, request

CLOSED = NO_ANSWER.status


@dataclass(frozen=True)
class HostileRequest:
    """The bytes of a request, and the statuses that it may get; 0 stands for an end without an answer."""

    kind: str
    content: bytes
    statuses: frozenset[int]


def hostile_requests(operator_key: str, client_key: str, rng: random.Random) -> list[HostileRequest]:
    """One of every kind, by callers with and without a key."""
    return [
        *_paths(operator_key, rng),
        *_queries(operator_key, rng),
        *_methods(operator_key),
        *_headers(operator_key, rng),
        *_framing(operator_key),
        *_keys(client_key, rng),
        *_ranges(operator_key),
        *_dashboard(operator_key, rng),
    ]


def _one(kind: str, content: bytes, *statuses: int) -> HostileRequest:
    return HostileRequest(kind, content, frozenset(statuses))


def _paths(key: str, rng: random.Random) -> Iterator[HostileRequest]:
    for path in (
        "/../../etc/passwd",
        "/static-docs/../../../etc/passwd",
        "/static-docs/..%2f..%2f..%2fetc/passwd",
        "/static-docs/%2e%2e/%2e%2e/etc/passwd",
        "/dashboard/static/..%5c..%5cserver.py",
        "/dashboard/static/%00",
        "/dashboard/static/....//....//server.py",
        "/static-docs/%00.js",
        "/clients/%2e%2e",
        "/clients/..%2fkeys",
        "/tasks/%00",
        "/rounds/%ff%fe",
        "/rounds/%F0%9F%98%80",
        "/tasks/" + "x" * 20_000,
        "/" + "a/" * 2_000,
        "/%",
        "/%zz",
        "/;/..;/keys/",
        "//evil.example/clients",
        f"/rounds/round-{rng.randbytes(8).hex()}/schedule",
    ):
        # %2e%2e is decoded before a route is looked for: "..": a client of that name there is not.
        yield _one(f"path {path[:40]}", request("GET", path, **bearer(key)), 404, 405, 422)
    yield _one("path that is not ASCII", request("GET", "/clients/\xff\xfe", **bearer(key)), 400)
    yield _one("path with a control character", request("GET", "/clients/\x01", **bearer(key)), 400, 404, 422)
    yield _one("path with NUL", request("GET", "/clients/\0", **bearer(key)), 400)
    yield _one("path without a slash", request("GET", "clients", **bearer(key)), 400)
    yield _one("no path", b"GET\r\nHost: service\r\n\r\n", 400)
    yield _one("another host's address", request("GET", "http://evil.example/nowhere", **bearer(key)), 404)
    yield _one("longer than 64 KiB", request("GET", "/" + "x" * 70_000, **bearer(key)), 431)


def _queries(key: str, rng: random.Random) -> Iterator[HostileRequest]:
    for value in (
        "-1",
        "0",
        "1e3",
        "NaN",
        "Infinity",
        "9" * 400,
        "1.5",
        "%00",
        "%ff",
        "",
        "null",
        "0x10",
        "%D9%A3.5",
        "1;drop table clients",
        "1'or'1'='1",
        f"{rng.randrange(10**30, 10**31)}",
    ):
        path = f"/clients?per_page={value.replace(' ', '%20')}"
        yield _one(f"per_page={value[:24]}", request("GET", path, **bearer(key)), 422)
    for query in ("wait_s=-1", "wait_s=NaN", "wait_s=1e99", "wait_s="):
        yield _one(f"assignments?{query}", request("GET", f"/assignments?{query}", **bearer(key)), 403, 422)
    yield _one("task_id with NUL", request("GET", "/rounds?task_id=%00", **bearer(key)), 422)
    long = "&".join(f"p{number}=1" for number in range(6_000))
    yield _one("60 KiB of parameters", request("GET", f"/clients?page=x&{long}", **bearer(key)), 422)


def _methods(key: str) -> Iterator[HostileRequest]:
    for method in ("BREW", "get", "GETT", "G\0T", "", "X" * 10_000):
        yield _one(f"method {method[:10]!r}", request(method, "/clients", **bearer(key)), 400, 405, 431)
    for method in ("TRACE", "PROPFIND", "PATCH", "OPTIONS", "PURGE", "LOCK"):
        yield _one(f"method {method}", request(method, "/clients", **bearer(key)), 405)
    yield _one("CONNECT", request("CONNECT", "evil.example:443", **bearer(key)), 400)
    yield _one("an upgrade", request("GET", "/events", connection="Upgrade", upgrade="websocket"), 401)
    yield _one("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, CLOSED)
    yield _one(
        "TLS on a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), 400, CLOSED
    )
    yield _one("another protocol", b"EHLO evil.example\r\n", 400)


def _headers(key: str, rng: random.Random) -> Iterator[HostileRequest]:
    good = request("GET", "/clients", **bearer(key))
    yield _one("header of 70 KB", good[:-2] + b"X-Long: " + b"x" * 70_000 + b"\r\n\r\n", 431)
    many = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(6_000))
    yield _one("6,000 headers", good[:-2] + many + b"\r\n", 431)
    yield _one("header with NUL", good[:-2] + b"X-Nul: a\0b\r\n\r\n", 400)
    yield _one("header name with a space", good[:-2] + b"X Space: 1\r\n\r\n", 400)
    yield _one("header without a name", good[:-2] + b": 1\r\n\r\n", 400)
    yield _one("header without a colon", good[:-2] + b"nonsense\r\n\r\n", 400)
    yield _one("folded header", good[:-2] + b"X-Fold: a\r\n b\r\n\r\n", 200, 400)
    yield _one("bare line feeds", b"GET /clients HTTP/1.1\nHost: service\n\n", 400, 401)
    yield _one("HTTP/9.9", good.replace(b"HTTP/1.1", b"HTTP/9.9"), 400, 505)
    yield _one(
        "two keys",
        request("GET", "/clients", authorization="Bearer x")[:-2] + b"Authorization: Bearer y\r\n\r\n",
        401,
    )
    correlator = rng.randbytes(50).replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
    yield _one("bytes for a correlator", good[:-2] + b"X-Correlator: " + correlator + b"\r\n\r\n", 200, 400)
    for name, value in (
        ("Idempotency-Key", "x" * 300),
        ("Idempotency-Key", "a b"),
        ("Idempotency-Key", "\xe9"),
    ):
        headers = {**bearer(key), name.lower().replace("-", "_"): value, "content_type": "application/json"}
        yield _one(f"{name}: {value[:5]}", request("POST", "/clients", b"{}", **headers), 422)
    yield _one("Last-Event-ID", request("GET", "/events", last_event_id="-" + "9" * 50, **bearer(key)), 422)


def _framing(key: str) -> Iterator[HostileRequest]:
    """Where a request ends: what two servers could see differently, one smuggles a request past the first."""
    smuggled = b"GET /keys HTTP/1.1\r\nHost: service\r\n\r\n"
    head = b"POST /clients HTTP/1.1\r\nHost: service\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
    for kind, lines in (
        ("both lengths", b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"),
        ("both lengths, the other way", b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n"),
        ("two lengths", b"Content-Length: 5\r\nContent-Length: 50\r\n"),
        ("length that is a list", b"Content-Length: 5, 50\r\n"),
        ("negative length", b"Content-Length: -5\r\n"),
        ("length with a plus", b"Content-Length: +5\r\n"),
        ("length in hexadecimal", b"Content-Length: 0x5\r\n"),
        ("length beyond 64 bits", b"Content-Length: 99999999999999999999999\r\n"),
        ("length that is no number", b"Content-Length: five\r\n"),
        ("unknown transfer coding", b"Transfer-Encoding: chunked, identity\r\n"),
        ("hidden transfer coding", b"Transfer-Encoding : chunked\r\n"),
        ("transfer coding twice", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
    ):
        yield _one(kind, head + lines + b"\r\n0\r\n\r\n" + smuggled, 400)
    chunked = head + b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    for kind, chunks in (
        ("chunk of no size", b"\r\n\r\n"),
        ("chunk of negative size", b"-1\r\n{}\r\n0\r\n\r\n"),
        ("chunk beyond 64 bits", b"fffffffffffffffff\r\n{}\r\n"),
        ("chunk longer than it says", b"1\r\n{}{}{}\r\n0\r\n\r\n"),
        ("chunk of another number", b"0x2\r\n{}\r\n0\r\n\r\n"),
    ):
        yield _one(kind, chunked + chunks, 400)
    short = request("GET", "/healthz", b"x" * 50, content_length="0")
    yield _one("length shorter than the body", short, 200, 400)


def _keys(key: str, rng: random.Random) -> Iterator[HostileRequest]:
    for kind, value in (
        ("no scheme", key),
        ("another scheme", f"Basic {key}"),
        ("cut short", f"Bearer {key[:-1]}"),
        ("one digit changed", f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}"),
        ("another's id", f"Bearer fedcs_{rng.randbytes(8).hex()}_{key.rpartition('_')[2]}"),
        ("not ASCII", "Bearer \xff\xfe"),
        ("60 KB", "Bearer " + "x" * 60_000),
        (
            "token without signature",
            "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJvcGVyYXRvciIsInNjb3BlIjoibWFuYWdlIn0.",
        ),
        ("token of dots", "Bearer " + "." * 1000),
        (
            "token of random text",
            f"Bearer {rng.randbytes(20).hex()}.{rng.randbytes(40).hex()}.{rng.randbytes(32).hex()}",
        ),
    ):
        yield _one(f"key: {kind}", request("GET", "/clients", authorization=value), 401)
    yield _one("a client's key for an operator's", request("GET", "/clients", **bearer(key)), 403)
    form = {"content_type": "application/x-www-form-urlencoded"}
    for body in (
        b"",
        b"grant_type=password",
        b"grant_type=client_credentials&client_id=%00&client_secret=%ff",
    ):
        yield _one(
            f"token for {body[:30].decode()!r}", request("POST", "/oauth2/token", body, **form), 400, 401, 429
        )
    yield _one("token form of 100 KB", request("POST", "/oauth2/token", b"a=" + b"x" * 100_000, **form), 413)


def _ranges(key: str) -> Iterator[HostileRequest]:
    for value in (
        "bytes=9999999-",
        "bytes=-0",
        "bytes=5-1",
        "bytes=" + ",".join(["0-1"] * 5000),
        "lines=1-2",
    ):
        path = "/tasks/none/models/0"
        yield _one(f"Range: {value[:20]}", request("GET", path, range=value, **bearer(key)), 404)


def _dashboard(key: str, rng: random.Random) -> Iterator[HostileRequest]:
    forged = rng.randbytes(60).hex()
    form = {"content_type": "application/x-www-form-urlencoded"}
    for cookie in (f"fedcs_session={forged}", "fedcs_session=", "fedcs_session=\xff", "x=" + "y" * 30_000):
        yield _one(f"cookie {cookie[:24]!r}", request("GET", "/dashboard/cell", cookie=cookie), 303, 404)
        body = b"csrf_token=" + forged.encode()
        yield _one(
            "form with that cookie", request("POST", "/dashboard/logout", body, cookie=cookie, **form), 303
        )
    yield _one(
        "log-in from another site",
        request("POST", "/dashboard/login", f"key={key}".encode(), sec_fetch_site="cross-site", **form),
        403,
    )
    yield _one("log-in of 1,000 fields", request("POST", "/dashboard/login", b"a=1&" * 1000, **form), 400)
    yield _one("log-in of 100 KB", request("POST", "/dashboard/login", b"key=" + b"x" * 100_000, **form), 413)
    yield _one(
        "log-in with bytes", request("POST", "/dashboard/login", b"key=%ff%00\xff\xfe", **form), 401, 429
    )
