"""``/trainings``: a worker trains in a simulated client's place."""

import hashlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from services.domain.jobs import JobKind, JobState
from tests.databases import MOSTLY_SQLITE
from tests.integration.cell import assert_problem, enrol_one, make_model, started_round
from tests.integration.rounds_setup import Site, events_until, eventually, get_round, site, upload_as


@pytest.fixture(scope="module", params=MOSTLY_SQLITE)
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    postgres_url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    with site(request.param, tmp_path_factory.mktemp("data"), postgres_url) as found:
        yield found


def _ask(service: httpx.Client, round_id: str, client_id: str, partition: int = 3) -> httpx.Response:
    body = {"round_id": round_id, "client_id": client_id, "partition": partition}
    return service.post("/trainings", json=body)


def _training(service: httpx.Client, training_id: str) -> dict[str, Any]:
    response = service.get(f"/trainings/{training_id}")
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_trained_update_is_fetched_and_uploaded(here: Site) -> None:
    opened, keys = started_round(here.service, 2, dataset="generated")
    round_id, (client_id, _) = opened["round_id"], list(keys)
    asked = _ask(here.service, round_id, client_id)
    assert asked.status_code == 202
    training = asked.json()
    training_id = training["training_id"]
    assert (training["state"], training["partition"], training["error"]) == ("waiting", 3, None)
    assert (training["round_id"], training["client_id"]) == (round_id, client_id)
    assert _training(here.service, training_id) == training
    early = here.service.get(f"/trainings/{training_id}/update")
    assert_problem(early, 409, "TRAINING_NOT_DONE")

    assert here.worker.train(here.worker.claim(JobKind.TRAIN_CLIENT, training_id), seed=5)

    done = _training(here.service, training_id)
    assert done["state"] == "done"
    assert done["ended_at"] is not None
    update = here.service.get(f"/trainings/{training_id}/update")
    assert update.content == make_model(5)
    known = {"If-None-Match": update.headers["etag"]}
    assert here.service.get(f"/trainings/{training_id}/update", headers=known).status_code == 304
    response = upload_as(here.service, keys[client_id], round_id, client_id, update=update.content)
    assert response.status_code == 201
    told = events_until(here.service, "update.received", round_id=round_id)
    assert [event["kind"] for event in told if event["client_id"] == client_id] == [
        "training.waiting",
        "training.done",
        "update.received",
    ]


def test_an_update_that_was_deleted_after_its_round_is_said_to_be(here: Site) -> None:
    opened, (client_id, *_) = started_round(here.service, dataset="generated")
    training_id = _ask(here.service, opened["round_id"], client_id).json()["training_id"]
    assert here.worker.train(here.worker.claim(JobKind.TRAIN_CLIENT, training_id), seed=6)
    here.worker.models.path_of(hashlib.sha256(make_model(6)).hexdigest()).unlink()
    response = here.service.get(f"/trainings/{training_id}/update")
    assert "deleted" in assert_problem(response, 409, "TRAINING_NOT_DONE")["detail"]


def test_the_same_training_is_not_done_twice(here: Site) -> None:
    opened, keys = started_round(here.service, dataset="generated")
    (client_id,) = keys
    first = _ask(here.service, opened["round_id"], client_id)
    again = _ask(here.service, opened["round_id"], client_id)
    assert again.json() == first.json()
    assert len(here.worker.waiting(JobKind.TRAIN_CLIENT, first.json()["training_id"])) == 1


def test_only_selected_clients_are_trained_for(here: Site) -> None:
    opened, keys = started_round(here.service, dataset="generated")
    stranger, _ = enrol_one(here.service)
    assert_problem(_ask(here.service, opened["round_id"], stranger), 403, "NOT_SELECTED")
    assert_problem(_ask(here.service, "round-0", next(iter(keys))), 404, "ROUND_NOT_FOUND")
    response = _ask(here.service, opened["round_id"], next(iter(keys)), partition=-1)
    assert_problem(response, 422, "INVALID_REQUEST")


def test_there_is_no_training_of_another_name(here: Site) -> None:
    assert_problem(here.service.get("/trainings/training-0"), 404, "TRAINING_NOT_FOUND")
    assert_problem(here.service.get("/trainings/training-0/update"), 404, "TRAINING_NOT_FOUND")


def test_what_nobody_will_upload_is_not_trained(here: Site) -> None:
    opened, keys = started_round(here.service, 3, dataset="generated")
    round_id, (sent, waiting, idle) = opened["round_id"], list(keys)
    training_id = _ask(here.service, round_id, waiting).json()["training_id"]
    job = here.worker.claim(JobKind.TRAIN_CLIENT, training_id)
    upload_as(here.service, keys[sent], round_id, sent)
    assert here.service.post(f"/rounds/{round_id}/close").json()["state"] == "aggregating"
    assert _training(here.service, training_id)["state"] == "cancelled"
    assert not here.worker.train(job)
    assert _training(here.service, training_id)["state"] == "cancelled"
    assert_problem(here.service.get(f"/trainings/{training_id}/update"), 409, "TRAINING_NOT_DONE")
    assert _ask(here.service, round_id, waiting).json()["state"] == "cancelled"
    assert_problem(_ask(here.service, round_id, idle), 409, "ROUND_NOT_COLLECTING")
    told = events_until(here.service, "training.cancelled", round_id=round_id)[-1]
    assert (told["client_id"], told["data"]) == (waiting, {"training_id": training_id})


def test_a_training_fails_after_the_last_attempt(here: Site) -> None:
    opened, keys = started_round(here.service, dataset="generated")
    (client_id,) = keys
    training_id = _ask(here.service, opened["round_id"], client_id).json()["training_id"]
    for attempt in range(1, 4):
        eventually(lambda: here.worker.waiting(JobKind.TRAIN_CLIENT, training_id))
        assert _training(here.service, training_id)["state"] == "waiting"
        job = here.worker.claim(JobKind.TRAIN_CLIENT, training_id, lease_s=0.01)
        assert job.attempts == attempt
    failed = eventually(lambda: here.worker.state_of(job) is JobState.FAILED)
    assert failed
    training = _training(here.service, training_id)
    assert (training["state"], training["error"]) == ("failed", "the worker was not heard of in time")
    assert get_round(here.service, opened["round_id"])["state"] == "scheduled"
    told = events_until(here.service, "training.failed", round_id=opened["round_id"])[-1]
    assert (told["client_id"], told["data"]) == (client_id, {"training_id": training_id})
