"""The keys of a client: rotated by the client, bounded in number, revoked together, counted together."""

from pathlib import Path
from typing import Any

import httpx

from tests.integration.cell import as_client, assert_problem, enrol_one, fresh_name, report, without_key
from tests.integration.rounds_setup import eventually
from tests.integration.test_keys import find_key
from tests.running_service import running_service

MAX_KEYS = 5


def rotate(service: httpx.Client, client_id: str, key: str, **headers: str) -> dict[str, Any]:
    with as_client(service, key) as client:
        made = client.post(f"/clients/{client_id}/keys", json={"name": "next"}, headers=headers)
    assert made.status_code == 201, made.text
    answer: dict[str, Any] = made.json()
    return answer


def works(service: httpx.Client, key: str) -> bool:
    with as_client(service, key) as client:
        status = client.get("/assignments").status_code
    assert status in (200, 401)
    return status == 200


def id_of(key: str) -> str:
    return key.split("_")[1]


def test_a_rotated_key_ends_when_the_new_one_is_first_used(service_on_each: httpx.Client) -> None:
    service = service_on_each
    client_id, old = enrol_one(service)
    made = rotate(service, client_id, old)
    assert (made["client_id"], made["scope"], made["name"]) == (client_id, "client", "next")
    assert made["replaces"] == id_of(old)
    assert works(service, old), "the answer may have been lost"
    assert works(service, made["api_key"])
    assert not works(service, old)
    assert find_key(service, made["key_id"])["replaces"] is None
    assert find_key(service, id_of(old))["revoked_at"] is not None
    with as_client(service, made["api_key"]) as client:
        report(client, client_id)


def test_a_wrong_secret_is_no_use_of_a_key(service: httpx.Client) -> None:
    client_id, old = enrol_one(service)
    made = rotate(service, client_id, old)
    assert not works(service, f"fedcs_{made['key_id']}_{'0' * 64}")
    assert works(service, old)


def test_a_token_is_the_first_use_of_a_key(service: httpx.Client) -> None:
    client_id, old = enrol_one(service)
    made = rotate(service, client_id, old)
    form = {
        "grant_type": "client_credentials",
        "client_id": made["key_id"],
        "client_secret": made["api_key"],
    }
    with without_key(service) as device:
        token = device.post("/oauth2/token", data=form).json()["access_token"]
    assert not works(service, old)
    assert works(service, token)


def test_a_device_that_lost_the_answer_rotates_again(service_on_each: httpx.Client) -> None:
    service = service_on_each
    client_id, old = enrol_one(service)
    lost = rotate(service, client_id, old)["api_key"]
    new = rotate(service, client_id, old)["api_key"]
    assert not works(service, lost)
    assert works(service, old)
    assert works(service, new)
    assert not works(service, old)


def test_the_same_rotation_sent_again_gives_the_same_key(service: httpx.Client) -> None:
    client_id, old = enrol_one(service)
    once = {"Idempotency-Key": fresh_name()}
    assert len({rotate(service, client_id, old)["api_key"] for _ in range(2)}) == 2
    assert len({rotate(service, client_id, old, **once)["api_key"] for _ in range(2)}) == 1


def test_a_leaked_key_leaves_no_other_key_behind(service_on_each: httpx.Client) -> None:
    service = service_on_each
    client_id, leaked = enrol_one(service)
    minted = [rotate(service, client_id, leaked)["api_key"] for _ in range(20)]
    assert service.delete(f"/keys/{id_of(leaked)}").status_code == 204
    assert not any(works(service, key) for key in [leaked, *minted])


def test_a_key_that_was_never_used_is_revoked_alone(service: httpx.Client) -> None:
    client_id, old = enrol_one(service)
    made = rotate(service, client_id, old)
    assert service.delete(f"/keys/{made['key_id']}").status_code == 204
    assert not works(service, made["api_key"])
    assert works(service, old)


def test_all_keys_of_a_client_are_revoked_together(service_on_each: httpx.Client) -> None:
    service = service_on_each
    client_id, first = enrol_one(service)
    other_id, other = enrol_one(service)
    second = service.post(f"/clients/{client_id}/keys", json={}).json()["api_key"]
    third = rotate(service, client_id, first)["api_key"]
    assert service.delete(f"/clients/{client_id}/keys").status_code == 204
    assert not any(works(service, key) for key in (first, second, third))
    assert works(service, other)
    assert service.delete(f"/clients/{client_id}/keys").status_code == 204, "again changes nothing"
    assert service.get(f"/clients/{client_id}").status_code == 200
    new = service.post(f"/clients/{client_id}/keys", json={}).json()["api_key"]
    assert works(service, new)
    assert_problem(service.delete(f"/clients/{fresh_name()}/keys"), 404, "CLIENT_NOT_FOUND")
    assert service.get(f"/clients/{other_id}").status_code == 200


def test_a_client_does_not_revoke_keys(service: httpx.Client) -> None:
    client_id, key = enrol_one(service)
    with as_client(service, key) as client:
        assert_problem(client.delete(f"/clients/{client_id}/keys"), 403, "FORBIDDEN")
    assert works(service, key)


def test_a_client_has_only_so_many_keys(service_on_each: httpx.Client) -> None:
    service = service_on_each
    client_id, first = enrol_one(service)
    path = f"/clients/{client_id}/keys"
    assert [service.post(path, json={}).status_code for _ in range(MAX_KEYS - 1)] == [201] * (MAX_KEYS - 1)
    assert_problem(service.post(path, json={}), 409, "TOO_MANY_KEYS")
    new = rotate(service, client_id, first)["api_key"]
    assert works(service, new), "a rotation adds none"
    assert_problem(service.post(path, json={}), 409, "TOO_MANY_KEYS")
    assert service.delete(f"/keys/{id_of(new)}").status_code == 204
    assert service.post(path, json={}).status_code == 201


def test_all_keys_of_a_client_have_one_rate_limit(tmp_path: Path) -> None:
    with running_service(tmp_path, client_rate_limit="4/hour") as service:
        client_id, first = enrol_one(service)
        further = [service.post(f"/clients/{client_id}/keys", json={}).json()["api_key"] for _ in range(3)]
        _, other = enrol_one(service)
        statuses = []
        for key in (first, *further, first, *further):
            with as_client(service, key) as client:
                statuses.append(client.get("/assignments").status_code)
        assert statuses == [200] * 4 + [429] * 4
        assert works(service, other)


def test_a_rotation_ends_the_old_key_in_every_process(tmp_path: Path) -> None:
    with running_service(tmp_path) as first, running_service(tmp_path) as other:
        client_id, old = enrol_one(first)
        assert works(other, old)
        made = rotate(first, client_id, old)
        assert works(other, old)
        assert works(first, made["api_key"])
        eventually(lambda: not works(other, old))
        assert works(other, made["api_key"])
