"""Models in and out: the initial model of a task, and the model that selected clients train."""

import hashlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    content_digest,
    create_task,
    enrol_one,
    make_model,
    open_round,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import get_round, get_task, slot_of, upload_as
from tests.running_service import running_service


def _put(
    service: httpx.Client, task_id: str, model: bytes, headers: dict[str, str] | None = None
) -> httpx.Response:
    return service.put(
        f"/tasks/{task_id}/models/0",
        content=model,
        headers=content_digest(model) if headers is None else headers,
    )


def test_the_initial_model_comes_back_as_it_was_given(service_on_each: httpx.Client) -> None:
    task_id = create_task(service_on_each)["task_id"]
    model = make_model()
    version = _put(service_on_each, task_id, model)
    assert version.status_code == 200
    digest = hashlib.sha256(model).hexdigest()
    assert version.json()["digest"] == digest
    assert (version.json()["version"], version.json()["size_bytes"]) == (0, len(model))
    task = get_task(service_on_each, task_id)
    assert (task["state"], task["model_version"]) == ("ready", 0)
    response = service_on_each.get(f"/tasks/{task_id}/models/0")
    assert response.content == model
    assert response.headers["etag"] == f'"{digest}"'
    assert response.headers["content-type"] == "application/octet-stream"


def test_the_initial_model_may_be_changed_until_the_first_round(service_on_each: httpx.Client) -> None:
    service = service_on_each
    task_id = create_task(service)["task_id"]
    set_model(service, task_id, seed=1)
    second = set_model(service, task_id, seed=2)
    assert service.get(f"/tasks/{task_id}/models/0").content == second
    open_round(service, task_id)
    assert_problem(_put(service, task_id, make_model(3)), 409, "MODEL_EXISTS")
    assert _put(service, task_id, second).status_code == 200
    assert service.get(f"/tasks/{task_id}/models/0").content == second


def test_a_model_without_a_digest_is_accepted(service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    assert _put(service, task_id, make_model(), headers={}).status_code == 200


@pytest.mark.parametrize(
    ("model", "detail"),
    [
        (b"", "too short"),
        (b"no model", "a header of"),
        (make_model()[:-1], "and the file holds"),
        (make_model() + b"x", "and the file holds"),
        (make_model(bias=np.full(8, np.nan, np.float32)), "not all numbers are finite"),
        (make_model(bias=np.full(8, np.inf, np.float32)), "not all numbers are finite"),
        (b"\x02" + bytes(7) + b"{}", "no tensors"),
    ],
)
def test_what_is_no_sound_model_is_refused(model: bytes, detail: str, service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    problem = assert_problem(_put(service, task_id, model), 422, "BAD_TENSORS")
    assert detail in problem["detail"]
    assert get_task(service, task_id)["state"] == "initializing"
    assert_problem(service.get(f"/tasks/{task_id}/models/0"), 404, "MODEL_NOT_FOUND")


def test_a_model_with_another_digest_is_refused(service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    response = _put(service, task_id, make_model(1), headers=content_digest(make_model(2)))
    assert_problem(response, 422, "DIGEST_MISMATCH")
    assert get_task(service, task_id)["state"] == "initializing"


@pytest.mark.parametrize(
    "digest", ["", "md5=:AAAA:", "sha-256=AAAA", "sha-256=:AAAA:", "sha-256=:" + "A" * 44]
)
def test_a_digest_header_that_is_none_is_refused(digest: str, service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    response = _put(service, task_id, make_model(), headers={"Content-Digest": digest})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert "Content-Digest must be sha-256=:BASE64:" in problem["detail"]


def test_the_digest_is_found_among_others(service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    model = make_model()
    digests = f"a-sha-256=:A:, {content_digest(model)['Content-Digest']}"
    response = _put(service, task_id, model, headers={"Content-Digest": digests})
    assert response.status_code == 200, response.text


@pytest.fixture(scope="module")
def service_for_small_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("data"), max_model_bytes="1000") as client:
        yield client


def test_a_model_over_the_limit_is_refused(service_for_small_models: httpx.Client) -> None:
    service = service_for_small_models
    task_id = create_task(service)["task_id"]
    large = make_model(more=np.zeros(250, np.float32))
    assert len(large) > 1000 > len(make_model())
    assert_problem(_put(service, task_id, large), 413, "BODY_TOO_LARGE")

    def in_pieces() -> Iterator[bytes]:
        for start in range(0, len(large), 100):
            yield large[start : start + 100]

    response = service.put(f"/tasks/{task_id}/models/0", content=in_pieces())
    assert_problem(response, 413, "BODY_TOO_LARGE")
    assert get_task(service, task_id)["state"] == "initializing"
    set_model(service, task_id)


@pytest.mark.parametrize("version", ["1", "999999999"])
def test_there_is_no_version_that_was_not_made(version: str, service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    set_model(service, task_id)
    assert_problem(service.get(f"/tasks/{task_id}/models/{version}"), 404, "MODEL_NOT_FOUND")


@pytest.mark.parametrize("version", ["-1", "newest", "2147483648", "0.5"])
def test_what_is_no_version_is_refused(version: str, service: httpx.Client) -> None:
    response = service.get(f"/tasks/{create_task(service)['task_id']}/models/{version}")
    assert_problem(response, 422, "INVALID_REQUEST")


@pytest.fixture(scope="module")
def given(service: httpx.Client) -> tuple[str, bytes]:
    """The path of a model, and its bytes."""
    task_id = create_task(service)["task_id"]
    return f"/tasks/{task_id}/models/0", set_model(service, task_id)


@pytest.mark.parametrize("sent", ["{etag}", "W/{etag}", '"other", {etag}', "*"])
def test_a_model_that_is_known_is_not_sent_again(
    sent: str, given: tuple[str, bytes], service: httpx.Client
) -> None:
    path, model = given
    etag = f'"{hashlib.sha256(model).hexdigest()}"'
    response = service.get(path, headers={"If-None-Match": sent.format(etag=etag)})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["etag"] == etag


def test_another_model_than_the_known_one_is_sent(given: tuple[str, bytes], service: httpx.Client) -> None:
    path, model = given
    response = service.get(path, headers={"If-None-Match": '"other"'})
    assert (response.status_code, response.content) == (200, model)


@pytest.mark.parametrize(
    ("asked", "begin", "end"), [("bytes=0-9", 0, 10), ("bytes=20-", 20, None), ("bytes=-5", -5, None)]
)
def test_a_range_of_a_model_is_sent(
    asked: str, begin: int, end: int | None, given: tuple[str, bytes], service: httpx.Client
) -> None:
    path, model = given
    response = service.get(path, headers={"Range": asked})
    assert (response.status_code, response.content) == (206, model[begin:end])
    first = begin % len(model)
    assert (
        response.headers["content-range"] == f"bytes {first}-{first + len(response.content) - 1}/{len(model)}"
    )
    assert response.headers["etag"] == f'"{hashlib.sha256(model).hexdigest()}"'


def test_a_download_that_broke_off_is_resumed(given: tuple[str, bytes], service: httpx.Client) -> None:
    path, model = given
    etag = f'"{hashlib.sha256(model).hexdigest()}"'
    rest = service.get(path, headers={"Range": "bytes=50-", "If-Range": etag})
    assert (rest.status_code, rest.content) == (206, model[50:])
    whole = service.get(path, headers={"Range": "bytes=50-", "If-Range": '"other"'})
    assert (whole.status_code, whole.content) == (200, model)


def test_a_range_beyond_the_end_is_refused(given: tuple[str, bytes], service: httpx.Client) -> None:
    path, model = given
    response = service.get(path, headers={"Range": f"bytes={len(model)}-"})
    assert_problem(response, 416, "RANGE_NOT_SATISFIABLE")
    assert response.headers["content-range"] == f"bytes */{len(model)}"


@pytest.mark.parametrize("asked", ["nonsense", "bytes=", "bytes=a-b", "bytes=9-3", "lines=0-5", "bytes=-"])
def test_what_is_no_range_is_ignored(asked: str, given: tuple[str, bytes], service: httpx.Client) -> None:
    path, model = given
    response = service.get(path, headers={"Range": asked})
    assert (response.status_code, response.content) == (200, model)


def test_collection_begins_with_the_first_client_that_fetches_the_model(
    service_on_each: httpx.Client,
) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    path = f"/rounds/{opened['round_id']}/model"
    model = service.get(f"/tasks/{opened['task_id']}/models/0").content
    assert service.get(path).content == model
    assert get_round(service, opened["round_id"])["state"] == "scheduled"
    for key in keys.values():
        with as_client(service, key) as client:
            assert client.get(path).content == model
        assert get_round(service, opened["round_id"])["state"] == "collecting"


def test_a_client_that_was_not_selected_gets_no_model(service_on_each: httpx.Client) -> None:
    opened, _ = started_round(service_on_each)
    _, key = enrol_one(service_on_each)
    with as_client(service_on_each, key) as stranger:
        assert_problem(stranger.get(f"/rounds/{opened['round_id']}/model"), 403, "NOT_SELECTED")
    assert get_round(service_on_each, opened["round_id"])["state"] == "scheduled"


def test_there_is_no_model_of_a_round_that_does_not_exist(service: httpx.Client) -> None:
    assert_problem(service.get("/rounds/round-0/model"), 404, "ROUND_NOT_FOUND")
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        assert_problem(client.get("/rounds/round-0/model"), 404, "ROUND_NOT_FOUND")


def test_a_client_that_has_the_model_already_begins_to_train_when_told_so(service: httpx.Client) -> None:
    opened, keys = started_round(service, 2, clock="wall")
    round_id, (first, _) = opened["round_id"], list(keys)
    with as_client(service, keys[first]) as client:
        response = client.get(f"/rounds/{round_id}/model", headers={"If-None-Match": "*"})
        assert response.status_code == 304
    assert get_round(service, round_id)["state"] == "collecting"
    response = upload_as(service, keys[first], round_id, first, fedcs_elapsed_s=None)
    assert response.status_code == 201
    assert slot_of(service, round_id, first)["actual_update_s"] is not None


def test_the_model_can_be_fetched_after_the_round(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    service.post(f"/rounds/{opened['round_id']}/close")
    (key,) = keys.values()
    with as_client(service, key) as client:
        assert client.get(f"/rounds/{opened['round_id']}/model").status_code == 200
    assert get_round(service, opened["round_id"])["state"] == "failed"
