import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from pydantic import SecretStr

from operator_api.app import create_app
from operator_api.service import bootstrap
from services.settings import Settings
from tests.running_service import OPERATOR_KEY, running_service


def test_alive_and_ready_without_a_key(service: httpx.Client) -> None:
    assert httpx.get(service.base_url.join("/healthz")).json() == {"status": "alive"}
    ready = httpx.get(service.base_url.join("/readyz"))
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "degraded",
        "checks": {"database": "ok", "migrations": "ok", "disk": "ok", "broker": "not set up"},
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


def test_every_operation_is_documented_with_its_problems(service: httpx.Client) -> None:
    document = service.get("/openapi.json").json()
    assert document["info"]["title"] == "FedCS Operator"
    plan = document["paths"]["/plans"]["post"]
    assert set(plan["responses"]) == {"200", "400", "401", "403", "413", "415", "422", "429"}
    for status in set(plan["responses"]) - {"200"}:
        content = plan["responses"][status]["content"]
        assert list(content) == ["application/problem+json"]
        for cause, documented in content["application/problem+json"]["examples"].items():
            assert documented["value"]["cause"] == cause
            assert documented["value"]["status"] == int(status)
    assert document["components"]["schemas"]["PlanRequest"]["properties"]["policy"]["enum"] == [
        "fedcs",
        "optimal",
        "fedlim",
        "fl",
    ]
    assert document["components"]["schemas"]["LeftOutReason"]["enum"] == ["DEADLINE", "NO_DATA"]
    assert {"Problem", "InvalidParam"} <= set(document["components"]["schemas"])


def test_every_number_in_a_request_has_documented_limits(service: httpx.Client) -> None:
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    for schema in (schemas["PlanRequest"], schemas["Candidate"]):
        for name, documented in schema["properties"].items():
            if documented.get("type") in ("number", "integer"):
                assert {"minimum", "exclusiveMinimum"} & set(documented), name
                assert {"maximum", "exclusiveMaximum"} & set(documented), name


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
    response = httpx.get(f"{failing_service}/fails")
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["cause"] == "INTERNAL_ERROR"
    assert "secret" not in response.text
    assert "secret detail" in capsys.readouterr().out
