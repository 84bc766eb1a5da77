"""What surrounds every request: correlator, security headers, and its line in the log."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cell import as_client, enrol_one, fresh_name, report, started_round, upload
from tests.running_service import service_process


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "stderr"


@pytest.fixture(scope="module")
def logged_service(log_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service whose standard error goes to a file."""
    with service_process(tmp_path_factory.mktemp("data"), log_file) as (client, _):
        yield client


def log_lines(log_file: Path) -> list[dict[str, Any]]:
    whole = log_file.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def logged(log_file: Path, response: httpx.Response) -> dict[str, Any]:
    """The line in the log that belongs to an answer; it is written right after the answer is sent."""
    correlator = response.headers["x-correlator"]
    until = time.monotonic() + 120
    while True:
        found = [
            line
            for line in log_lines(log_file)
            if line.get("correlator") == correlator and line["event"] == "request"
        ]
        if found or time.monotonic() > until:
            (line,) = found
            return line
        time.sleep(0.02)


def some_of_every_kind(service: httpx.Client) -> dict[str, httpx.Response]:
    """Answers of every kind, by what they are."""
    stranger = httpx.get(service.base_url.join("/clients"), timeout=60)
    json_type = {"Content-Type": "application/json"}
    return {
        "200": service.get("/clients"),
        "201": service.post("/clients", json={}),
        "204": service.delete(f"/clients/{enrol_one(service)[0]}"),
        "400": service.post("/clients", content=b"{", headers=json_type),
        "401": stranger,
        "404": service.get(f"/clients/{fresh_name()}"),
        "404 path": service.get("/nothing"),
        "405": service.patch("/clients"),
        "413": service.post("/clients", content=b" " * (64 * 2**20 + 1), headers=json_type),
        "415": service.post("/clients", content=b"{}", headers={"Content-Type": "text/csv"}),
        "422": service.get("/clients?page=0"),
        "200 docs": service.get("/docs"),
        "200 openapi": service.get("/openapi.json"),
        "200 metrics": service.get("/metrics"),
        "200 script": service.get("/static-docs/swagger-ui-bundle.js"),
    }


def test_every_answer_has_the_security_headers_and_a_correlator(service: httpx.Client) -> None:
    for kind, response in some_of_every_kind(service).items():
        assert str(response.status_code) == kind.split()[0], (kind, response.text[:200])
        assert response.headers["x-content-type-options"] == "nosniff", kind
        assert response.headers["referrer-policy"] == "no-referrer", kind
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"], kind
        assert response.headers["cache-control"], kind
        assert uuid.UUID(response.headers["x-correlator"]), kind
        assert "server" not in response.headers, kind


def test_only_pages_may_run_scripts_and_only_our_own(service: httpx.Client) -> None:
    assert service.get("/clients").headers["content-security-policy"].startswith("default-src 'none'")
    page = service.get("/docs").headers["content-security-policy"]
    assert page.startswith("default-src 'self'")
    assert "http" not in page


def test_what_holds_keys_is_not_cached(service: httpx.Client) -> None:
    assert service.post("/clients", json={}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "given",
    [
        "b4333c46-49c0-4f62-80d7-f0ef930f1c46",
        "a",
        "x" * 256,
        "urn:trace/1;hop.2_3-<{4}>",
    ],
)
def test_a_correlator_is_echoed(given: str, service: httpx.Client) -> None:
    headers = {"x-correlator": given}
    for response in (
        service.get("/clients", headers=headers),
        service.get("/nothing", headers=headers),
        service.get(f"/clients/{fresh_name()}", headers=headers),
        httpx.get(service.base_url.join("/clients"), headers=headers, timeout=60),
        service.post("/clients", content=b"{", headers={"Content-Type": "application/json"} | headers),
    ):
        assert response.headers["x-correlator"] == given


@pytest.mark.parametrize("given", [b"", b"x" * 257, b"a b", b"a\tb", b"a,b", b"caf\xe9", b"{}\"'"])
def test_a_malformed_correlator_is_replaced(given: bytes, service: httpx.Client) -> None:
    response = service.get("/clients", headers=httpx.Headers([(b"x-correlator", given)]))
    assert response.status_code == 200
    assert uuid.UUID(response.headers["x-correlator"])


def test_every_request_without_a_correlator_gets_its_own(service: httpx.Client) -> None:
    assert len({service.get("/healthz").headers["x-correlator"] for _ in range(5)}) == 5


def test_the_log_is_lines_of_json(logged_service: httpx.Client, log_file: Path) -> None:
    some_of_every_kind(logged_service)
    lines = log_lines(log_file)
    assert len(lines) > 15
    for line in lines:
        assert {"event", "level", "timestamp"} <= set(line)


def test_a_request_is_logged_with_what_it_was_about(logged_service: httpx.Client, log_file: Path) -> None:
    opened, keys = started_round(logged_service)
    ((client_id, key),) = keys.items()
    task_id, round_id = opened["task_id"], opened["round_id"]
    correlator = fresh_name("trace")
    shown = logged_service.get(f"/tasks/{task_id}", headers={"x-correlator": correlator})
    line = logged(log_file, shown)
    assert line["ms"] > 0
    assert {
        "correlator": correlator,
        "task_id": task_id,
        "caller": "operator",
        "method": "GET",
        "path": f"/tasks/{task_id}",
        "status": 200,
        "level": "info",
    }.items() <= line.items()
    with as_client(logged_service, key) as client:
        uploaded = logged(log_file, upload(client, round_id, client_id))
        reported = logged(log_file, report(client, client_id))
        polled = logged(log_file, client.get("/assignments"))
    key_id = key.split("_")[1]
    assert {"round_id": round_id, "client_id": client_id, "caller": key_id}.items() <= uploaded.items()
    for line in (reported, polled):
        assert {"client_id": client_id, "caller": key_id}.items() <= line.items()


def test_refused_requests_are_logged_too(logged_service: httpx.Client, log_file: Path) -> None:
    for response in (
        httpx.get(logged_service.base_url.join("/clients"), timeout=60),
        logged_service.get("/nothing"),
        logged_service.get("/clients?page=0"),
    ):
        assert logged(log_file, response)["status"] == response.status_code
    assert "caller" not in logged(log_file, httpx.get(logged_service.base_url.join("/clients"), timeout=60))


def test_one_request_leaves_nothing_in_the_log_of_the_next(
    logged_service: httpx.Client, log_file: Path
) -> None:
    _, key = enrol_one(logged_service)
    with as_client(logged_service, key) as client:
        client.get("/assignments")
        line = logged(log_file, client.get("/healthz"))
    assert not {"client_id", "caller", "round_id", "task_id"} & set(line)


def test_keys_never_get_into_the_log(logged_service: httpx.Client, log_file: Path) -> None:
    client_id, key = enrol_one(logged_service)
    with as_client(logged_service, key) as client:
        report(client, client_id)
        client.post("/reports", json={"client_id": client_id, "api_key": key})
    made = logged_service.post("/keys", json={"scope": "manage"}).json()
    logged_service.delete(f"/keys/{made['key_id']}")
    with as_client(logged_service, made["api_key"]) as revoked:
        assert revoked.get("/clients").status_code == 401
    text = log_file.read_text()
    assert made["key_id"] in text
    operator_key = logged_service.headers["Authorization"].removeprefix("Bearer ")
    for secret in (key.rpartition("_")[2], made["api_key"].rpartition("_")[2], operator_key):
        assert secret not in text
