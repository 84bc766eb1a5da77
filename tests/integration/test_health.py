import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import SecretStr

from operator_api.app import create_app
from operator_api.service import bootstrap
from services.settings import Settings
from tests.running_service import OPERATOR_KEY, running_service


def test_alive_and_ready_without_a_key(service: httpx.Client) -> None:
    assert httpx.get(service.base_url.join("/healthz"), timeout=60).json() == {"status": "alive"}
    ready = httpx.get(service.base_url.join("/readyz"), timeout=60)
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "degraded",
        "checks": {
            "database": "ok",
            "migrations": "ok",
            "disk": "ok",
            "model_store": "ok",
            "broker": "not set up",
            "workers": "none is running",
        },
    }


def test_not_ready_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    with running_service(tmp_path, min_free_disk_bytes=str(2**60)) as service:
        response = service.get("/readyz")
        assert response.status_code == 503
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["cause"] == "NOT_READY"
        assert "bytes free" in response.json()["detail"]
        assert service.get("/healthz").status_code == 200


def test_not_ready_when_the_data_directory_is_gone(tmp_path: Path) -> None:
    with running_service(tmp_path / "data", database_url=f"sqlite:///{tmp_path}/other.sqlite") as service:
        shutil.rmtree(tmp_path / "data")
        assert service.get("/readyz").status_code == 503
        assert "No such file" in service.get("/readyz").json()["detail"]


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method.upper()} {path}", operation


def has_example(document: dict[str, Any], media: dict[str, Any]) -> bool:
    """Whether a body has an example, of its own or of the schema that it or its items follow."""
    if {"example", "examples"} & set(media):
        return True
    schema = resolved(document, media["schema"])
    if schema.get("type") == "array":
        schema = resolved(document, schema["items"])
    return bool(schema.get("examples"))


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def test_every_operation_is_documented_with_examples(service: httpx.Client) -> None:
    document = service.get("/openapi.json").json()
    assert document["info"]["title"] == "FedCS Operator"
    for name, operation in operations_of(document):
        assert operation["summary"], name
        assert operation["description"], name
        for kind, media in operation.get("requestBody", {}).get("content", {}).items():
            assert kind != "application/json" or has_example(document, media), name
        good = {status: said for status, said in operation["responses"].items() if status < "300"}
        assert good, name
        for status, said in good.items():
            for kind, media in said.get("content", {}).items():
                assert kind == "application/octet-stream" or has_example(document, media), (
                    name,
                    status,
                    kind,
                )


def test_every_problem_is_documented_with_an_example(service: httpx.Client) -> None:
    document = service.get("/openapi.json").json()
    for name, operation in operations_of(document):
        for status, said in operation["responses"].items():
            if status < "400":
                continue
            if name == "POST /oauth2/token" and status in {"400", "401"}:  # these are as RFC 6749 has them
                assert said["content"]["application/json"]["example"]["error"], status
                continue
            assert list(said["content"]) == ["application/problem+json"], (name, status)
            examples = said["content"]["application/problem+json"]["examples"]
            assert examples, (name, status)
            for cause, documented in examples.items():
                problem = documented["value"]
                assert (problem["cause"], problem["status"]) == (cause, int(status)), name
                assert problem["title"], name
                assert problem["detail"], name
    plan = document["paths"]["/plans"]["post"]["responses"]
    assert set(plan) == {"200", "400", "401", "403", "408", "413", "415", "422", "429", "503", "507"}
    assert {"Problem", "InvalidParam"} <= set(document["components"]["schemas"])


def test_every_operation_with_a_key_can_be_refused(service: httpx.Client) -> None:
    for name, operation in operations_of(service.get("/openapi.json").json()):
        if operation["security"]:
            assert {"401", "403", "429"} <= set(operation["responses"]), name


def test_choices_are_listed(service: httpx.Client) -> None:
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["PlanRequest"]["properties"]["policy"]["enum"] == ["fedcs", "optimal", "fedlim", "fl"]
    assert schemas["NotSelectedReason"]["enum"] == ["DEADLINE", "NO_DATA", "TOO_SLOW", "NOT_CHOSEN"]


def numbers_in(document: dict[str, Any], schema: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """The schemas of all numbers in a schema, by where they are."""
    schema = resolved(document, schema)
    if schema.get("type") in ("number", "integer"):
        yield name, schema
    for property_name, inner in schema.get("properties", {}).items():
        yield from numbers_in(document, inner, f"{name}/{property_name}")
    for inner in schema.get("anyOf", ()):
        if "required" not in inner:  # which of its properties have to be there, said before
            yield from numbers_in(document, inner, name)
    if "items" in schema:
        yield from numbers_in(document, schema["items"], f"{name}[]")


def test_every_number_in_a_request_has_documented_limits(service: httpx.Client) -> None:
    document = service.get("/openapi.json").json()
    numbers: list[tuple[str, Any]] = []
    for name, operation in operations_of(document):
        for parameter in operation.get("parameters", ()):
            numbers += numbers_in(document, parameter["schema"], f"{name} {parameter['name']}")
        for media in operation.get("requestBody", {}).get("content", {}).values():
            numbers += numbers_in(document, media["schema"], name)
    assert len(numbers) > 40
    for name, schema in numbers:
        assert {"minimum", "exclusiveMinimum"} & set(schema), name
        assert {"maximum", "exclusiveMaximum"} & set(schema), name


def test_every_batch_has_a_documented_length(service: httpx.Client) -> None:
    document = service.get("/openapi.json").json()
    for name in ("EnrolmentBatchRequest", "ReportBatchRequest", "PlanRequest"):
        lists = [
            item for item in document["components"]["schemas"][name]["properties"].values() if "items" in item
        ]
        assert lists, name
        assert all("maxItems" in item for item in lists), name


@pytest.fixture
def failing_service(tmp_path: Path) -> Iterator[str]:
    """The service in a thread of this process, with a route that has a bug."""
    app = create_app(bootstrap(Settings(operator_key=SecretStr(OPERATOR_KEY), data_dir=tmp_path)))

    @app.get("/fails")
    def fail() -> None:
        raise RuntimeError("secret detail")

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


def test_a_bug_is_a_problem_that_tells_nothing(
    failing_service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    response = httpx.get(f"{failing_service}/fails", timeout=60)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["cause"] == "INTERNAL_ERROR"
    assert "secret" not in response.text
    assert response.headers["x-correlator"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "secret detail" in capsys.readouterr().out
