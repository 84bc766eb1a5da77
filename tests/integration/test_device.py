"""The device of the client library: resumed downloads, declined rounds, encoded updates, evaluations."""

import hashlib
import json
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from pydantic import BaseModel
from safetensors.numpy import load

from fedcs_client import Api, ApiError, Device, DeviceEvaluation, Resources, endpoints
from fedcs_client.device import Parameters
from fedcs_client.flower import flower_device, flower_model
from services.contract.assignments import AssignmentsResponse, TrainAssignment, UpdateResponse
from services.contract.reports import ReportResponse
from tests.integration.cell import create_task, enrol_one, fresh_name, make_model, open_round, set_model
from tests.integration.rounds_setup import eventually, get_round
from tests.integration.scripted_server import Scripted, answer, scripted_server

FILE = bytes(range(200))
DIGEST = hashlib.sha256(FILE).hexdigest()
PROBLEM = b'{"title": "Forbidden", "status": 403, "detail": "no", "cause": "NOT_SELECTED"}'


def _cut_off() -> bytes:
    """An answer that announces the whole file, and breaks after half of it."""
    return answer("200 OK", FILE)[: -len(FILE) // 2]


def test_a_download_that_breaks_is_resumed() -> None:
    rest = answer("206 Partial Content", FILE[100:], "Content-Range: bytes 100-199/200")
    with scripted_server(_cut_off(), rest) as server, Api(server.url, "key") as api:
        assert api.download(endpoints.round_model("round-1"), DIGEST) == FILE
        assert server.header(0, "Range") is None
        assert (server.header(1, "Range"), server.header(1, "If-Range")) == ("bytes=100-", f'"{DIGEST}"')


def test_a_file_that_has_changed_meanwhile_is_downloaded_anew() -> None:
    whole = answer("200 OK", FILE)
    with scripted_server(_cut_off(), whole) as server, Api(server.url, "key") as api:
        assert api.download(endpoints.round_model("round-1"), DIGEST) == FILE


def test_a_file_with_another_digest_is_not_returned() -> None:
    wrong, right = answer("200 OK", b"x" * 200), answer("200 OK", FILE)
    with scripted_server(wrong, right) as server, Api(server.url, "key") as api:
        assert api.download(endpoints.round_model("round-1"), DIGEST) == FILE


def test_a_refused_download_is_an_error_at_once() -> None:
    with scripted_server(answer("403 Forbidden", PROBLEM)) as server, Api(server.url, "key") as api:
        with pytest.raises(ApiError) as refused:
            api.download(endpoints.round_model("round-1"), DIGEST)
        assert refused.value.problem.cause == "NOT_SELECTED"


Train = Callable[[Parameters, TrainAssignment], Parameters | None]


def _run_round(service: httpx.Client, train: Train, **terms: object) -> dict[str, Any]:
    """A round of one device that trains so; as it is when the device has done its part."""
    labels = {"cell": fresh_name("cell")}
    client_id, key = enrol_one(service, labels)
    task = create_task(service, labels=labels, clock="wall", **terms)
    set_model(service, task["task_id"])
    device = Device(
        str(service.base_url),
        client_id,
        key,
        report=lambda: Resources(8e6, 1e4, 200),
        train=train,
        evaluate=lambda _model: DeviceEvaluation(0.5, 1.0, 200),
        poll_s=0.5,
    )
    living = Thread(target=device.run)
    living.start()
    try:
        eventually(lambda: service.get(f"/clients/{client_id}/reports").json())
        round_id = open_round(service, task["task_id"])["round_id"]
        eventually(lambda: get_round(service, round_id)["schedule"]["slots"][0]["outcome"] != "pending")
        return get_round(service, round_id)
    finally:
        device.stop()
        living.join(timeout=60)
        device.close()


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_a_device_sends_its_update_in_the_encoding_of_the_round(service: httpx.Client, encoding: str) -> None:
    def train(model: Parameters, _assignment: TrainAssignment) -> Parameters:
        return {name: np.asarray(tensor + 1, tensor.dtype) for name, tensor in model.items()}

    ended = _run_round(service, train, update_encoding=encoding)
    assert ended["schedule"]["slots"][0]["outcome"] == "received"
    (version,) = service.get(f"/tasks/{ended['task_id']}/models").json()
    assert version["device_accuracy"] == 0.5


def test_a_device_that_does_not_train_declines(service: httpx.Client) -> None:
    ended = _run_round(service, lambda _model, _assignment: None)
    assert ended["schedule"]["slots"][0]["outcome"] == "declined"
    assert ended["outcome"] == "TOO_FEW_UPDATES"


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_an_update_that_does_not_fit_the_model_is_declined(service: httpx.Client, encoding: str) -> None:
    def train(model: Parameters, _assignment: TrainAssignment) -> Parameters:
        return {name: tensor[:1] for name, tensor in model.items() if tensor.ndim}

    ended = _run_round(service, train, update_encoding=encoding)
    assert ended["schedule"]["slots"][0]["outcome"] == "declined"


def _example(model: type[BaseModel]) -> dict[str, Any]:
    extra: Any = model.model_config["json_schema_extra"]
    (example,) = extra["examples"]
    return dict(example)


def _assigned(model: bytes, etag: str, **changes: object) -> bytes:
    """An answer with one round that trains this model."""
    (found,) = _example(AssignmentsResponse)["assignments"]
    digest = hashlib.sha256(model).hexdigest()
    assignment = {**found, "model_digest": digest, "starts_in_s": 0.0, "channel": None, **changes}
    return answer("200 OK", json.dumps({"assignments": [assignment]}).encode(), f"ETag: {etag}")


def _refused(status: str, cause: str) -> bytes:
    problem = {"title": "t", "status": int(status[:3]), "detail": "d", "cause": cause}
    return answer(status, json.dumps(problem).encode(), "Retry-After: 3600")


MODEL = make_model()
REPORTED = answer("201 Created", json.dumps(_example(ReportResponse)).encode())
ACCEPTED = answer("201 Created", json.dumps(_example(UpdateResponse)).encode())
DOWNLOADED = answer("200 OK", MODEL)
CONFLICT = _refused("409 Conflict", "CONFLICT")
REVOKED = _refused("401 Unauthorized", "UNAUTHENTICATED")


def _device(url: str, train: Train) -> Device:
    return Device(
        url,
        "c1",
        "key",
        report=lambda: Resources(8e6, 1e4, 200),
        train=train,
        evaluate=lambda _model: DeviceEvaluation(0.5, float("nan"), 200),
        poll_s=0.0,
    )


def _lines(server: Scripted) -> list[str]:
    """Method and last part of the path of each request."""
    lines = [request.split(b" HTTP", 1)[0].decode().split() for request in server.requests]
    return [f"{method} {path.rpartition('/')[2]}" for method, path in lines]


def test_a_refused_round_is_not_trained_again() -> None:
    trained = []
    script = (REPORTED, _assigned(MODEL, '"1"'), DOWNLOADED, CONFLICT, _refused("422 x", "BAD_TENSORS"))
    with scripted_server(*script, CONFLICT, _assigned(MODEL, '"2"'), REVOKED) as server:
        device = _device(server.url, lambda model, _assignment: trained.append(1) or model)  # type: ignore[func-returns-value]
        with pytest.raises(ApiError):
            device.run()
    assert len(trained) == 1
    assert _lines(server) == [
        "POST reports",
        "GET assignments",
        "GET model",
        "POST evaluations",
        "PUT c1",
        "POST decline",
        "GET assignments",
        "GET assignments",
    ]


def test_a_device_outlives_an_outage_and_a_refused_evaluation() -> None:
    away = _refused("503 Service Unavailable", "NOT_READY")
    script = (away, REPORTED, away, _assigned(MODEL, '"1"'), DOWNLOADED, CONFLICT, ACCEPTED)
    with scripted_server(*script) as server:
        assert _device(server.url, lambda model, _assignment: model).run(rounds=1) == 1
    measured = json.loads(server.requests[5].partition(b"\r\n\r\n")[2])
    assert measured == {"accuracy": 0.5, "loss": None, "samples": 200}


def test_a_device_that_is_stopped_before_its_slot_declines() -> None:
    def train(model: Parameters, _assignment: TrainAssignment) -> Parameters:
        device.stop()
        return model

    script = (REPORTED, _assigned(MODEL, '"1"', starts_in_s=1e6), DOWNLOADED, CONFLICT, CONFLICT)
    with scripted_server(*script) as server:
        device = _device(server.url, train)
        assert device.run() == 0
    assert _lines(server)[-1] == "POST decline"


class FlowerClient:
    """Computes in double precision, on 150 samples."""

    def get_parameters(self, _config: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
        return [np.full((), place, np.float32) for place in range(1002)]

    def fit(self, parameters: list[Any], _config: Mapping[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        return [array + np.float64(0.5) for array in parameters], 150, {}

    def evaluate(
        self, _parameters: list[Any], _config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        return float("nan"), 150, {"accuracy": 0.5}


def test_a_flower_client_needs_no_changes() -> None:
    client = FlowerClient()
    model = flower_model(client)
    script = (REPORTED, _assigned(model, '"1"'), answer("200 OK", model), CONFLICT, ACCEPTED)
    with scripted_server(*script) as server:
        report = lambda: Resources(8e6, 1e4, 200)  # noqa: E731
        device = flower_device(server.url, "c1", "key", client, report=report, evaluates=True)
        assert device.run(rounds=1) == 1
    assert server.header(4, "Fedcs-Data-Samples") == "150"
    update = load(server.requests[4].partition(b"\r\n\r\n")[2])
    assert {(tensor.dtype, tensor.shape) for tensor in update.values()} == {(np.dtype(np.float32), ())}
    assert [float(update[name]) for name in sorted(update)] == [place + 0.5 for place in range(1002)]
