"""The service with its models on S3: over HTTP it is the same, until S3 is away."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from services.storage.model_store import S3Location
from tests.fork_server import run_module
from tests.integration.cell import assert_problem, create_task, make_model, set_model
from tests.running_service import OPERATOR_KEY, running_service
from tests.s3_server import BUCKET, S3Server


@pytest.fixture(scope="module")
def on_s3(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[httpx.Client]:
    assert s3.endpoint
    place = S3Location(BUCKET, uuid4().hex)
    with running_service(tmp_path_factory.mktemp("data"), model_store=str(place)) as service:
        yield service


def model_path(service: httpx.Client, seed: int) -> str:
    """Where a task's initial model is, which was made with this seed."""
    task_id = create_task(service)["task_id"]
    answer = service.put(f"/tasks/{task_id}/models/0", content=make_model(seed))
    assert answer.status_code == 200, answer.text
    return f"/tasks/{task_id}/models/0"


def test_a_model_goes_in_and_comes_out(on_s3: httpx.Client) -> None:
    content = make_model(1)
    path = model_path(on_s3, 1)
    whole = on_s3.get(path)
    assert whole.content == content
    etag = whole.headers["ETag"]
    assert etag == f'"{hashlib.sha256(content).hexdigest()}"'
    assert on_s3.get(path, headers={"If-None-Match": etag}).status_code == 304
    part = on_s3.get(path, headers={"Range": "bytes=3-9"})
    assert (part.status_code, part.content) == (206, content[3:10])
    assert on_s3.get("/readyz").json()["checks"]["model_store"] == "ok"


def test_while_s3_is_away_it_is_said_and_then_it_goes_on(on_s3: httpx.Client, s3: S3Server) -> None:
    known, unknown = model_path(on_s3, 2), model_path(on_s3, 3)
    waiting = create_task(on_s3)["task_id"]
    assert on_s3.get(known).status_code == 200
    s3.stop()
    try:
        assert on_s3.get(known).content == make_model(2)
        problem = assert_problem(on_s3.get(unknown), 503, "MODEL_STORE_AWAY")
        assert "Could not connect to the endpoint" in problem["detail"]
        refused = on_s3.put(f"/tasks/{waiting}/models/0", content=make_model(4))
        assert_problem(refused, 503, "MODEL_STORE_AWAY")
        assert on_s3.get(f"/tasks/{waiting}").json()["state"] == "initializing"
        unready = assert_problem(on_s3.get("/readyz"), 503, "NOT_READY")
        assert unready["detail"].startswith(f"model_store: The model store s3://{BUCKET}/")
        assert on_s3.get("/healthz").status_code == 200
    finally:
        s3.start()
    assert on_s3.get("/readyz").status_code == 200
    assert on_s3.get(unknown).content == make_model(3)
    set_model(on_s3, waiting)


NO_BUCKET = ("s3://no-such-bucket", "The model store s3://no-such-bucket cannot be used: NoSuchBucket: ")
NO_PLACE = (
    "https://host/bucket",
    "FEDCS_MODEL_STORE: Value error, must be a directory or s3://bucket/prefix",
)


@pytest.mark.parametrize(
    ("role", "place", "said"), [("serve", *NO_BUCKET), ("worker", *NO_BUCKET), ("serve", *NO_PLACE)]
)
@pytest.mark.usefixtures("s3")
def test_a_place_that_cannot_be_used_is_told_in_one_line(
    tmp_path: Path, role: str, place: str, said: str
) -> None:
    environment = os.environ | {
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_BROKER_URL": "redis://127.0.0.1:9/0",
        "FEDCS_PORT": "0",
        "FEDCS_DATA_DIR": str(tmp_path),
        "FEDCS_MODEL_STORE": place,
    }
    failed = run_module("operator_api", role, env=environment)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"fedcs: {said}")
    assert failed.stderr.count("\n") == 1
