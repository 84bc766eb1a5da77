"""A seeded fuzzer: honest requests of every kind, each spoilt in a way or two that the rng choose."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.hostile.raw_http import bearer, request
from tests.integration.cell import resources

Headers = dict[str, str | None]


@dataclass(frozen=True)
class Attempt:
    """A request that can still be changed."""

    method: str
    path: str
    body: bytes = b""
    headers: Headers = field(default_factory=dict)

    def content(self) -> bytes:
        """As it goes over the wire."""
        return request(self.method, self.path, self.body, **self.headers)


@dataclass(frozen=True)
class FuzzedRequest:
    """The bytes of a request, and what was done to it."""

    kind: str
    content: bytes


_JSON: Headers = {"content_type": "application/json"}
_FORM: Headers = {"content_type": "application/x-www-form-urlencoded"}
_ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, -1e-308, 2**63, 2**64, 10**400, "", "x" * 3000, "\0", "\x7f", "💥", "NaN",
    [], {}, [[]], {"a": {"a": {}}}, [None] * 1000, "../..", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
)  # fmt: skip
_ODD_TEXTS = (
    "", "-1", "0", "1e3", "NaN", "-Infinity", "9" * 300, "%00", "%ff", "%0d%0aX:1", "..", "%2e%2e%2f",
    "x" * 5000, "%F0%9F%92%A5", "'", "\"", "{}", "[]", "*", "%", "%zz", "1.5", "null", "true", "a,b",
    "a;b", "<script>",
)  # fmt: skip
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "")
_HEADER_NAMES = (
    "Accept", "Authorization", "Content-Digest", "Content-Type", "Cookie", "Fedcs-Data-Samples",
    "Fedcs-Elapsed-S", "Forwarded", "Host", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "Range",
    "X-Correlator", "X-CSRF-Token", "X-Forwarded-For", "X-Forwarded-Proto",
)  # fmt: skip


def fuzzed_requests(
    rng: random.Random, operator_key: str, client_id: str, client_key: str, round_id: str
) -> Iterator[FuzzedRequest]:
    """Spoilt requests without end; the ids are of things that exist, which none of them may harm."""
    honest = _honest_requests(operator_key, client_id, client_key, round_id)
    while True:
        attempt = rng.choice(honest)
        kinds = rng.choices(
            list(_WAYS), weights=[weight for weight, _ in _WAYS.values()], k=rng.choice((1, 1, 2))
        )
        for kind in kinds:
            if kind != "bytes":
                attempt = _WAYS[kind][1](rng, attempt)
        content = attempt.content()
        if "bytes" in kinds:
            content = _spoil_bytes(rng, content)
        yield FuzzedRequest(kinds[0], content)


def _honest_requests(operator_key: str, client_id: str, client_key: str, round_id: str) -> list[Attempt]:
    operator, client = bearer(operator_key), bearer(client_key)
    plan = {
        "round_deadline_s": 180,
        "model_size_bytes": 10**6,
        "candidates": [resources("c1"), resources("c2")],
    }
    task = {
        "round_deadline_s": 180,
        "request_fraction": 0.5,
        "clock": "simulated",
        "labels": {"cell": "nowhere"},
    }

    def post(path: str, body: Mapping[str, Any], key: Mapping[str, str] = operator) -> Attempt:
        return Attempt("POST", path, json.dumps(body).encode(), {**_JSON, **key})

    def get(path: str, key: Mapping[str, str] = operator) -> Attempt:
        return Attempt("GET", path, b"", {"content_length": None, **key})

    return [
        post("/plans", plan),
        post("/clients", {"labels": {"fuzz": "x"}}),
        post("/clients/batch", {"clients": [{"labels": {}}, {"labels": {}}]}),
        post("/reports", resources(client_id), client),
        post("/reports/batch", {"reports": [resources(client_id)]}),
        post("/tasks", task),
        post("/rounds", {"task_id": "task-0000000000000000"}),
        post("/keys", {"scope": "read", "name": "fuzz"}),
        post("/trainings", {"round_id": round_id, "client_id": "nobody", "partition": {}}),
        post(f"/rounds/{round_id}/decline", {"reason": {}}, client),
        post("/tasks/none/models/0/evaluations", {"accuracy": 0.5, "loss": 1.0, "samples": 10}, client),
        post("/tasks/none/finish", {}),
        Attempt("PATCH", "/tasks/none", b'{"max_rounds": 5, "name": "x"}', {**_JSON, **operator}),
        get("/tasks/none/models?page=1"),
        get("/clients?page=1&per_page=10"),
        get(f"/clients/{client_id}/reports?per_page=5"),
        get("/rounds?page=1"),
        get(f"/rounds/{round_id}"),
        get(f"/rounds/{round_id}/schedule"),
        get(f"/rounds/{round_id}/model", client),
        get("/assignments?wait_s=0", client),
        get("/tasks/none/models/7"),
        get("/events?task_id=none"),
        get("/openapi.json"),
        get("/dashboard/login?next=/"),
        Attempt("POST", "/dashboard/login", b"key=nonsense&next=/", dict(_FORM)),
        Attempt("POST", "/oauth2/token", b"grant_type=client_credentials&client_secret=y", dict(_FORM)),
        Attempt("PUT", f"/rounds/{round_id}/updates/{client_id}", b"\x08\0\0\0\0\0\0\0{}      ", {**client}),
        Attempt("PUT", "/tasks/none/models/0", b"\x08\0\0\0\0\0\0\0{}      ", {**operator}),
    ]  # fmt: skip


def _spoil_method(rng: random.Random, attempt: Attempt) -> Attempt:
    method = rng.choice(_METHODS)
    # What would really remove a thing is left to others.
    return attempt if method == "DELETE" and attempt.path.count("/") > 1 else replace(attempt, method=method)


def _spoil_path(rng: random.Random, attempt: Attempt) -> Attempt:
    steps = attempt.path.split("/")
    steps[rng.randrange(1, len(steps))] = rng.choice(_ODD_TEXTS)
    return replace(attempt, path="/".join(steps) or "/")


def _spoil_query(rng: random.Random, attempt: Attempt) -> Attempt:
    path, _, query = attempt.path.partition("?")
    names = [part.partition("=")[0] for part in query.split("&") if part] or ["page", "per_page", "state"]
    parts = [f"{rng.choice(names)}={rng.choice(_ODD_TEXTS)}" for _ in range(rng.choice((1, 2, 20)))]
    return replace(attempt, path=f"{path}?{'&'.join(parts)}")


def _spoil_header(rng: random.Random, attempt: Attempt) -> Attempt:
    name = rng.choice(_HEADER_NAMES).lower().replace("-", "_")
    value = rng.choice((*_ODD_TEXTS, "\xff\xfe", "a\x01b", "\t", "bytes=0-0,-1", 'W/"x"', "x" * 30_000))
    return replace(attempt, headers={**attempt.headers, name: value})


def _spoil_json(rng: random.Random, attempt: Attempt) -> Attempt:
    try:
        body = json.loads(attempt.body)
    except (ValueError, RecursionError):  # it is no form of JSON, or no longer
        return replace(attempt, body=rng.randbytes(rng.randrange(2000)))
    target = body
    while isinstance(target, (dict, list)) and target:
        place = rng.choice(list(target)) if isinstance(target, dict) else rng.randrange(len(target))
        if not isinstance(target[place], (dict, list)) or not target[place] or rng.random() < 0.3:
            target[place] = rng.choice(_ODD_VALUES)
            break
        target = target[place]
    if rng.random() < 0.2 and isinstance(body, dict):
        body[rng.choice(("x", "", "\0", "client_id", "x" * 2000))] = rng.choice(_ODD_VALUES)
    return replace(attempt, body=json.dumps(body).encode())


def _spoil_text(rng: random.Random, attempt: Attempt) -> Attempt:
    """The body as text: cut, doubled, with bytes changed or put in."""
    body = bytearray(attempt.body or b"{}")
    where = rng.randrange(len(body))
    odd = rng.choice(
        (b"\xff", b"\0", b"\\ud800", b"NaN", b"[" * 5000, b'"', b"1e400", b"\xef\xbb\xbf", b"9" * 5000)
    )
    spoilt = rng.choice((bytes(body[:where]), bytes(body * 2), bytes(body[:where] + odd + body[where:])))
    return replace(attempt, body=spoilt)


def _spoil_bytes(rng: random.Random, content: bytes) -> bytes:
    """The request itself, head and all."""
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 3, 10))):
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    return bytes(spoilt)


_WAYS: dict[str, tuple[int, Callable[[random.Random, Attempt], Attempt]]] = {
    "method": (1, _spoil_method),
    "path": (2, _spoil_path),
    "query": (2, _spoil_query),
    "header": (3, _spoil_header),
    "JSON": (4, _spoil_json),
    "body": (3, _spoil_text),
    "bytes": (2, lambda _, attempt: attempt),
}
