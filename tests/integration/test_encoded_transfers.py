"""Encoded transfers over HTTP: sizes, downloads, uploads in the round's encoding, and hostile updates."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from fedcs_client.encoding import UNENCODED, decode_model, encode_update
from services.contract.rounds import ScheduleResponse
from tests.integration.cell import (
    as_client,
    assert_problem,
    content_digest,
    create_task,
    enrol,
    fresh_name,
    open_round,
    report_all,
)
from tests.integration.rounds_setup import slot_of, upload_as
from tests.running_service import running_service

Arrays = dict[str, npt.NDArray[Any]]
ENCODED = [
    {"update_encoding": "float16"},
    {"update_encoding": "int8", "model_encoding": "float16"},
    {"update_encoding": "int8-topk", "model_encoding": "float16"},
    {"model_encoding": "float16"},
]


def model_with(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "dense.weight": rng.normal(0, 0.1, (40, 100)).astype("f4"),
        "dense.bias": rng.normal(0, 0.1, 40).astype("f4"),
        "norm.running_mean": rng.normal(0, 0.1, 600).astype("f4"),
    }


def encoded_round(
    service: httpx.Client, number: int = 1, **terms: object
) -> tuple[dict[str, Any], dict[str, str], bytes]:
    """A round of a task with these terms; the round, the clients' keys, and the model as it was set."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, number, labels)
    report_all(service, list(keys))
    task = create_task(service, labels=labels, **{"model_size_bytes": None, **terms})
    model = save(model_with(0))
    response = service.put(f"/tasks/{task['task_id']}/models/0", content=model, headers=content_digest(model))
    assert response.status_code == 200, response.text
    return open_round(service, task["task_id"]), keys, model


def download(service: httpx.Client, opened: dict[str, Any], key: str) -> httpx.Response:
    with as_client(service, key) as client:
        return client.get(f"/rounds/{opened['round_id']}/model")


@pytest.mark.parametrize("terms", ENCODED)
def test_a_round_goes_by_its_encodings(terms: dict[str, str], service: httpx.Client) -> None:
    opened, keys, _ = encoded_round(service, 2, **terms)
    schedule = ScheduleResponse.model_validate(opened["schedule"])
    client_id, key = next(iter(keys.items()))
    given = download(service, opened, key)
    received = given.content
    assert given.headers["ETag"].strip('"') == hashlib.sha256(received).hexdigest()
    assert len(received) == schedule.download_size_bytes
    decoded = load(decode_model(received, schedule))
    for name, array in model_with(0).items():
        assert np.allclose(decoded[name], array, rtol=2.0**-10, atol=1e-7)
    with as_client(service, key) as client:
        (assignment,) = client.get("/assignments").json()["assignments"]
    assert assignment["model_size_bytes"] == len(received)
    assert assignment["model_digest"] == hashlib.sha256(received).hexdigest()
    assert (
        assignment["update_encoding"] == schedule.update_encoding == terms.get("update_encoding", "float32")
    )
    assert assignment["model_encoding"] == schedule.model_encoding == terms.get("model_encoding", "float32")
    update = encode_update(save(model_with(1)), received, schedule)
    assert len(update) == schedule.upload_size_bytes
    sent = {"update": update, "fedcs_encoding": schedule.update_encoding}
    first = upload_as(service, key, opened["round_id"], client_id, **sent)
    assert first.status_code == 201, first.text
    assert first.json()["digest"] == hashlib.sha256(update).hexdigest()
    assert upload_as(service, key, opened["round_id"], client_id, **sent).status_code == 200
    again = encode_update(save(model_with(2)), received, schedule)
    other = upload_as(service, key, opened["round_id"], client_id, **(sent | {"update": again}))
    assert_problem(other, 409, "UPDATE_EXISTS")


def test_the_encoded_model_is_stored_once_and_served_by_every_round(service: httpx.Client) -> None:
    opened, keys, _ = encoded_round(service, 2, model_encoding="float16")
    files = [download(service, opened, key) for key in keys.values()]
    assert files[0].content == files[1].content
    with as_client(service, next(iter(keys.values()))) as client:
        path = f"/rounds/{opened['round_id']}/model"
        known = client.get(path, headers={"If-None-Match": files[0].headers["ETag"]})
        assert known.status_code == 304
        part = client.get(path, headers={"Range": "bytes=8-15"})
        assert part.content == files[0].content[8:16]
    task = service.get(f"/tasks/{opened['task_id']}/models/0").content
    assert load(task)["dense.weight"].dtype == np.float32


@pytest.mark.parametrize("sent", ["float32", "float16", "int8", "int8-topk", "zip", None])
def test_an_update_in_another_encoding_is_refused(sent: str | None, service: httpx.Client) -> None:
    encoding = "float16" if sent == "int8" else "int8"
    opened, keys, model = encoded_round(service, update_encoding=encoding)
    ((client_id, key),) = keys.items()
    response = upload_as(service, key, opened["round_id"], client_id, update=model, fedcs_encoding=sent)
    problem = assert_problem(response, 422, "ENCODING_MISMATCH")
    assert encoding in problem["detail"]
    slot = slot_of(service, opened["round_id"], client_id)
    assert (slot["outcome"], slot["rejections"]) == ("pending", 1)
    assert "Fedcs-Encoding" in slot["last_rejection"]


def test_an_update_to_a_round_without_encoding_needs_no_header(service: httpx.Client) -> None:
    opened, keys, model = encoded_round(service)
    ((client_id, key),) = keys.items()
    encoded = upload_as(service, key, opened["round_id"], client_id, update=model, fedcs_encoding="int8")
    assert_problem(encoded, 422, "ENCODING_MISMATCH")
    assert upload_as(service, key, opened["round_id"], client_id, update=model).status_code == 201


@pytest.mark.parametrize(
    ("terms", "upload", "down"),
    [
        ({"update_encoding": "float16"}, 50_001, 100_001),
        ({"update_encoding": "int8", "model_encoding": "float16"}, 25_001, 50_001),
        ({"update_encoding": "int8-topk"}, 5626, 100_001),
        ({"update_encoding": "int8-topk", "topk_fraction": 0.5}, 15_626, 100_001),
    ],
)
def test_a_told_model_size_is_scheduled_times_the_factor(
    terms: dict[str, Any], upload: int, down: int, service: httpx.Client
) -> None:
    opened, _, _ = encoded_round(service, model_size_bytes=100_001, **terms)
    schedule = opened["schedule"]
    assert (schedule["upload_size_bytes"], schedule["download_size_bytes"]) == (upload, down)
    plan = {
        "round_deadline_s": 180,
        "model_size_bytes": 100_001,
        "candidates": [
            {"client_id": "a", "throughput_bps": 1e6, "compute_samples_per_s": 50, "data_samples": 200}
        ],
        **terms,
    }
    planned = service.post("/plans", json=plan).json()
    assert (planned["upload_size_bytes"], planned["download_size_bytes"]) == (upload, down)
    (slot,), (own,) = planned["slots"], schedule["slots"]
    assert slot["upload_s"] == own["upload_s"] == pytest.approx(8 * upload / 1e6)
    assert planned["distribution_s"] == schedule["distribution_s"] == pytest.approx(8 * down / 1e6)
    told = service.post("/plans", json=plan | {"upload_size_bytes": 7, "download_size_bytes": 9}).json()
    assert (told["upload_size_bytes"], told["download_size_bytes"]) == (7, 9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("update_encoding", "int4"),
        ("model_encoding", "int8"),
        ("topk_fraction", 0),
        ("topk_fraction", 1.5),
    ],
)
def test_an_unknown_encoding_is_named(field: str, value: object, service: httpx.Client) -> None:
    response = service.post("/tasks", json={"round_deadline_s": 180, field: value})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert field in str(problem["invalid_params"])


def hostile(good: Arrays) -> Iterator[bytes]:
    """Files that no client makes."""
    for name, array in good.items():
        yield save({other: kept for other, kept in good.items() if other != name})
        yield save({**good, name: np.zeros((*array.shape, 2), array.dtype)})
        yield save({**good, name: array.astype("f8")})
        yield save({**good, name: array.reshape(-1)[:-1]})
        yield save({**good, f"{name}:other": array})
        if array.dtype.kind == "f":
            for bad in (math.nan, math.inf, -math.inf):
                yield save({**good, name: np.full_like(array, bad)})
        if name.endswith(":scale"):
            for scale in (-1.0, 3e38):
                yield save({**good, name: np.full_like(array, scale)})
        if name.endswith(":positions"):
            for positions in (0, 255, 1):
                yield save({**good, name: np.full_like(array, positions)})
    whole = save(good)
    yield from (b"", whole[:7], whole[:-1], whole + b"\0", whole[8:], b"\xff" * 64)
    yield save({name: np.zeros(0, array.dtype) for name, array in good.items()})
    yield save({"dense.weight": np.zeros((40, 100), "f4")})


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("encoded")) as service:
        yield service


@pytest.mark.parametrize("encoding", ["float16", "int8", "int8-topk"])
def test_hostile_encoded_updates_are_named_in_their_slot(encoding: str, patient: httpx.Client) -> None:
    opened, keys, _ = encoded_round(patient, update_encoding=encoding)
    schedule = ScheduleResponse.model_validate(opened["schedule"])
    ((client_id, key),) = keys.items()
    received = download(patient, opened, key).content
    good = encode_update(save(model_with(1)), received, schedule, seed=0)
    tried = 0
    for tried, content in enumerate(hostile(load(good)), start=1):
        response = upload_as(
            patient, key, opened["round_id"], client_id, update=content, fedcs_encoding=encoding
        )
        assert response.status_code in {413, 422}, (tried, response.status_code, response.text)
        slot = slot_of(patient, opened["round_id"], client_id)
        assert slot["rejections"] == tried
        assert slot["last_rejection"] in response.json()["detail"]
    assert tried >= 30  # over 100 in all three encodings
    last = upload_as(patient, key, opened["round_id"], client_id, update=good, fedcs_encoding=encoding)
    assert last.status_code == 201


def test_the_largest_encoded_update_is_no_larger_than_its_layout(patient: httpx.Client) -> None:
    """More bytes than the encoded tensors take are refused before they are read to the end."""
    opened, keys, _ = encoded_round(patient, update_encoding="int8-topk")
    ((client_id, key),) = keys.items()
    content = save({"dense.weight": np.zeros(200_000, "f4")})
    response = upload_as(
        patient, key, opened["round_id"], client_id, update=content, fedcs_encoding="int8-topk"
    )
    assert_problem(response, 413, "BODY_TOO_LARGE")


def test_unencoded_terms_leave_everything_as_it_is(tmp_path: Path) -> None:
    content = save(model_with(0))
    (tmp_path / "model").write_bytes(content)
    assert decode_model(content, UNENCODED) == encode_update(content, b"", UNENCODED) == content
