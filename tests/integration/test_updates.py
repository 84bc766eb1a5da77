"""``PUT /rounds/{round_id}/updates/{client_id}``: what is accepted from whom, and what is recorded."""

import hashlib
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    content_digest,
    enrol_one,
    make_model,
    started_round,
    upload,
)
from tests.integration.rounds_setup import events_until, eventually, get_round, slot_of, upload_as
from tests.running_service import running_service


def test_an_update_is_accepted_once(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (client_id, _) = opened["round_id"], list(keys)
    update = make_model(5)
    first = upload_as(service, keys[client_id], round_id, client_id, update=update, fedcs_data_samples="150")
    assert first.status_code == 201
    assert first.json() == {
        "round_id": round_id,
        "client_id": client_id,
        "digest": hashlib.sha256(update).hexdigest(),
        "size_bytes": len(update),
        "data_samples": 150,
        "grants": [],
        "replacements": [],
    }
    assert get_round(service, round_id)["state"] == "collecting"
    assert upload_as(service, keys[client_id], round_id, client_id, update=update).status_code == 200
    other = upload_as(service, keys[client_id], round_id, client_id, update=make_model(6))
    assert_problem(other, 409, "UPDATE_EXISTS")
    assert get_round(service, round_id)["received"] == 1
    slot = slot_of(service, round_id, client_id)
    assert (slot["outcome"], slot["elapsed_s"], slot["rejections"]) == ("received", 10, 0)


def test_the_same_update_is_welcome_after_the_round_was_closed(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    assert upload_as(service, key, opened["round_id"], client_id).status_code == 201
    assert get_round(service, opened["round_id"])["state"] == "aggregating"
    again = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s="500")
    assert again.status_code == 200
    other = upload_as(service, key, opened["round_id"], client_id, update=make_model(6))
    assert_problem(other, 409, "UPDATE_EXISTS")


def test_only_selected_clients_upload_and_only_for_themselves(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (first, other) = opened["round_id"], list(keys)
    stranger, stranger_key = enrol_one(service)
    assert_problem(upload_as(service, stranger_key, round_id, stranger), 403, "NOT_SELECTED")
    assert_problem(upload_as(service, keys[first], round_id, other), 403, "FORBIDDEN")
    assert_problem(upload(service, round_id, first), 403, "FORBIDDEN")
    assert_problem(upload_as(service, keys[first], "round-0", first), 404, "ROUND_NOT_FOUND")
    ended = get_round(service, round_id)
    assert (ended["state"], ended["received"]) == ("scheduled", 0)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (b"", "too short"),
        (b"nonsense", "a header of"),
        (make_model()[:-4], "and the file holds"),
        (make_model(bias=np.full(8, np.nan, np.float32)), "'bias': not all numbers are finite"),
        (make_model(weight=np.full((8, 4), -np.inf, np.float32)), "'weight': not all numbers are finite"),
        (make_model(extra=np.zeros(1, np.float32)), "'extra' is not expected"),
        (make_model(bias=np.zeros(9, np.float32)), "'bias': shape [9], expected [8]"),
        (make_model(bias=np.zeros(8, np.float64)), "'bias': dtype F64, expected F32"),
    ],
)
def test_an_update_that_is_none_is_recorded_and_another_may_follow(
    update: bytes, reason: str, service: httpx.Client
) -> None:
    opened, keys = started_round(service, 2)
    round_id, (client_id, _) = opened["round_id"], list(keys)
    response = upload_as(service, keys[client_id], round_id, client_id, update=update)
    assert reason in assert_problem(response, 422, "BAD_TENSORS")["detail"]
    slot = slot_of(service, round_id, client_id)
    assert (slot["outcome"], slot["rejections"]) == ("pending", 1)
    assert reason in slot["last_rejection"]
    assert upload_as(service, keys[client_id], round_id, client_id).status_code == 201
    slot = slot_of(service, round_id, client_id)
    assert (slot["outcome"], slot["rejections"]) == ("received", 1)


def test_an_update_that_claims_more_samples_than_reported_is_rejected(service_on_each: httpx.Client) -> None:
    opened, keys = started_round(service_on_each)
    ((client_id, key),) = keys.items()
    round_id = opened["round_id"]
    for claimed in ("201", str(10**12)):
        refused = upload_as(service_on_each, key, round_id, client_id, fedcs_data_samples=claimed)
        assert "the client reported 200" in assert_problem(refused, 422, "DATA_SAMPLES")["detail"]
    slot = slot_of(service_on_each, round_id, client_id)
    assert (slot["outcome"], slot["rejections"], slot["weight"]) == ("pending", 2, None)
    assert upload_as(service_on_each, key, round_id, client_id, fedcs_data_samples="200").status_code == 201


def test_a_rejection_is_told_as_an_event(service_on_each: httpx.Client) -> None:
    opened, keys = started_round(service_on_each)
    ((client_id, key),) = keys.items()
    upload_as(service_on_each, key, opened["round_id"], client_id, update=b"nonsense")
    told = events_until(service_on_each, "update.rejected", round_id=opened["round_id"])[-1]
    assert told["client_id"] == client_id
    assert "header" in told["data"]["reason"]


def test_an_update_with_another_digest_is_rejected(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    other = content_digest(make_model(9))["Content-Digest"]
    with as_client(service, key) as client:
        response = client.put(
            f"/rounds/{opened['round_id']}/updates/{client_id}",
            content=make_model(),
            headers={"Content-Digest": other, "Fedcs-Data-Samples": "1", "Fedcs-Elapsed-S": "1"},
        )
    assert_problem(response, 422, "DIGEST_MISMATCH")
    slot = slot_of(service, opened["round_id"], client_id)
    assert (slot["outcome"], slot["rejections"]) == ("pending", 1)
    assert "Content-Digest" in slot["last_rejection"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Digest", None),
        ("Content-Digest", "sha-256=:AAAA:"),
        ("Content-Digest", "sha-512=:AAAA:"),
        ("Fedcs-Data-Samples", None),
        ("Fedcs-Data-Samples", "0"),
        ("Fedcs-Data-Samples", "-1"),
        ("Fedcs-Data-Samples", "many"),
    ],
)
def test_headers_that_are_missing_or_wrong_are_named(
    name: str, value: str | None, service: httpx.Client
) -> None:
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    headers = {**content_digest(make_model()), "Fedcs-Data-Samples": "200", "Fedcs-Elapsed-S": "10"}
    del headers[name]
    if value is not None:
        headers[name] = value
    with as_client(service, key) as client:
        path = f"/rounds/{opened['round_id']}/updates/{client_id}"
        response = client.put(path, content=make_model(), headers=headers)
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"] == name.lower()
    assert slot_of(service, opened["round_id"], client_id)["rejections"] == 0


def test_more_bytes_than_the_model_can_have_are_refused(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    response = upload_as(service, key, opened["round_id"], client_id, update=bytes(300_000))
    assert_problem(response, 413, "BODY_TOO_LARGE")
    slot = slot_of(service, opened["round_id"], client_id)
    assert (slot["outcome"], slot["rejections"]) == ("pending", 1)
    assert upload_as(service, key, opened["round_id"], client_id).status_code == 201


def test_of_many_updates_at_once_one_counts(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (client_id, _) = opened["round_id"], list(keys)

    def send(seed: int) -> int:
        return upload_as(service, keys[client_id], round_id, client_id, update=make_model(seed)).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = Counter(threads.map(send, range(8)))
    assert statuses == {201: 1, 409: 7}
    assert get_round(service, round_id)["received"] == 1


def test_the_same_update_many_times_at_once_counts_once(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()

    def send(_: int) -> int:
        return upload_as(service, key, opened["round_id"], client_id).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = Counter(threads.map(send, range(8)))
    assert statuses == {201: 1, 200: 7}
    ended = get_round(service, opened["round_id"])
    assert (ended["state"], ended["received"]) == ("aggregating", 1)


def test_when_all_upload_at_once_the_round_closes_once(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 8)
    round_id = opened["round_id"]

    def send(client_id: str) -> int:
        return upload_as(service, keys[client_id], round_id, client_id).status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(send, keys)) == {201}
    ended = get_round(service, round_id)
    assert (ended["state"], ended["received"]) == ("aggregating", 8)
    kinds = [event["kind"] for event in events_until(service, "round.aggregating", round_id=round_id)]
    assert kinds.count("update.received") == 8
    assert kinds.count("round.collecting") == 1


@pytest.fixture(scope="module")
def own_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A service, and where it keeps its models."""
    directory = tmp_path_factory.mktemp("data")
    with running_service(directory) as client:
        yield client, directory / "models"


def _files(models: Path) -> set[Path]:
    return {path for path in models.rglob("*") if path.is_file()}


def test_an_update_that_breaks_off_leaves_nothing(own_service: tuple[httpx.Client, Path]) -> None:
    service, models = own_service
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    before = _files(models)
    update = make_model(7)
    head = (
        f"PUT /rounds/{opened['round_id']}/updates/{client_id} HTTP/1.1\r\nHost: service\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(update)}\r\nFedcs-Data-Samples: 200\r\n"
        f"Fedcs-Elapsed-S: 10\r\nContent-Digest: {content_digest(update)['Content-Digest']}\r\n\r\n"
    )
    address = (service.base_url.host, service.base_url.port or 80)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head.encode() + update[: len(update) // 2])
        eventually(lambda: _files(models) > before)
    eventually(lambda: _files(models) == before)
    slot = slot_of(service, opened["round_id"], client_id)
    assert (slot["outcome"], slot["rejections"]) == ("pending", 0)
    response = upload_as(service, key, opened["round_id"], client_id, update=update)
    assert response.status_code == 201
    (kept,) = _files(models) - before
    assert kept.read_bytes() == update


def test_nothing_is_kept_of_what_is_refused(own_service: tuple[httpx.Client, Path]) -> None:
    service, models = own_service
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    before = _files(models)
    for update in (b"nonsense", make_model(bias=np.full(8, np.nan, np.float32)), bytes(300_000)):
        upload_as(service, key, opened["round_id"], client_id, update=update)
    late = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s="1000")
    assert late.status_code == 409
    assert _files(models) == before
