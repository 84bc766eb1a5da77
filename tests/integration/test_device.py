"""The device of the client library: resumed downloads, declined rounds, encoded updates, evaluations."""

import hashlib
from collections.abc import Callable
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest

from fedcs_client import Api, ApiError, Device, DeviceEvaluation, Resources, endpoints
from fedcs_client.device import Parameters
from services.contract.assignments import TrainAssignment
from tests.integration.cell import create_task, enrol_one, fresh_name, open_round, set_model
from tests.integration.rounds_setup import eventually, get_round
from tests.integration.scripted_server import answer, scripted_server

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
        return {name: np.asarray(tensor + np.float32(0.5)) for name, tensor in model.items()}

    ended = _run_round(service, train, update_encoding=encoding)
    assert ended["schedule"]["slots"][0]["outcome"] == "received"
    (version,) = service.get(f"/tasks/{ended['task_id']}/models").json()
    assert version["device_accuracy"] == 0.5


def test_a_device_that_does_not_train_declines(service: httpx.Client) -> None:
    ended = _run_round(service, lambda _model, _assignment: None)
    assert ended["schedule"]["slots"][0]["outcome"] == "declined"
    assert ended["outcome"] == "TOO_FEW_UPDATES"
