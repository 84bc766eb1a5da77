"""Tasks that no worker can do: they fail at once, and say what to do. And those of one's own that work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from services.domain.jobs import JobKind
from services.storage.database import Database
from services.storage.tables import jobs
from tests.e2e.hosted_cell import PATIENCE_S, HostedCell, hosted_cell
from tests.integration.cell import make_model, open_round, set_model
from tests.integration.rounds_setup import events_until, eventually, get_task
from tests.running_stack import Stack, running_stack

OWN = "tests.e2e.custom_learning"
NOBODY = "http://127.0.0.1:9"


@contextmanager
def _offline() -> Iterator[None]:
    """What is started here downloads nothing, whether there is a network or not."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, NOBODY)
        yield


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Its data sets: a damaged Fashion-MNIST, no CIFAR-10, and what the operator's own needs."""
    folder = tmp_path_factory.mktemp("datasets")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{name}-ubyte").write_bytes(b"\0\0\x08")
    (folder / "centres.txt").write_text("0 0  3 0  0 3")
    directory = tmp_path_factory.mktemp("stack")
    with running_stack(directory) as running:
        settings = {"datasets": str(folder), "allowed_imports": OWN}
        with _offline():
            worker = running.worker("--processes", "2", **settings)
            worker.__enter__()
        try:
            yield running
        finally:
            worker.__exit__(None, None, None)


def _error_at_once(cell: HostedCell) -> str:
    """Why a task failed at the first attempt to initialize its model."""
    task = cell.task_in("failed")
    told = events_until(cell.service, "task.failed", task_id=cell.task_id)
    failures = [event["data"] for event in told if event["kind"] == "job.failed"]
    (failure,) = [item for item in failures if item["job"] == JobKind.INITIALIZE_MODEL.value]
    assert failure["attempt"] == 1
    assert task["outcome"] == "INITIALIZATION_FAILED"
    assert task["detail"] == failure["error"]
    assert "\n" not in task["detail"]
    assert len(task["detail"]) < 1000
    return str(failure["error"])


@pytest.mark.parametrize(
    ("terms", "saying"),
    [
        ({"dataset": "cifar-10"}, ["cifar-10 cannot be read", "nor downloaded", "put its files there"]),
        ({"dataset": "fashion-mnist"}, ["fashion-mnist cannot be read", "set FEDCS_DATASETS to a folder"]),
        ({"dataset": f"{OWN}:circles"}, ["cannot be imported", "circles", "correct the name"]),
        ({"dataset": f"{OWN}:Line"}, ["must return two data sets"]),
        ({"model": "os:getcwd"}, ["may not be imported", "FEDCS_ALLOWED_IMPORTS", "'os'"]),
        ({"model": f"{OWN}_of_others:Net"}, ["may not be imported", "FEDCS_ALLOWED_IMPORTS"]),
        ({"model": f"{OWN}:Curve"}, ["cannot be imported", "Curve", "correct the name"]),
        ({"model": f"{OWN}:points"}, ["must return a network when called without arguments"]),
    ],
)
def test_what_cannot_be_loaded_fails_the_task_at_once(
    stack: Stack, terms: dict[str, str], saying: list[str]
) -> None:
    cell = hosted_cell(stack.service, [10])
    assert cell.start_task(**terms)["state"] == "failed"
    error = _error_at_once(cell)
    for words in saying:
        assert words in error


def test_a_folder_for_data_sets_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    with running_stack(tmp_path, "--processes", "1", datasets=missing) as stack:
        cell = hosted_cell(stack.service, [10])
        assert cell.start_task(dataset="cifar-10")["state"] == "failed"
        error = _error_at_once(cell)
        assert f"the folder {missing!r} for data sets is not there" in error
        assert "FEDCS_DATASETS" in error
        assert hosted_cell(stack.service, [10]).start_task()["state"] == "ready", "it needs no folder"
    assert not os.path.lexists(missing)


def test_a_network_and_a_data_set_of_ones_own_are_trained_and_evaluated(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [100, 150, 50])
    terms = {"model": f"{OWN}:Line", "dataset": f"{OWN}:points", "learning_rate": 0.5}
    assert cell.start_task(**terms)["state"] == "ready"
    assert cell.finish_round(cell.begin_round())["state"] == "aggregated"
    metrics = cell.evaluated(1)
    assert metrics["accuracy"] > 0.9
    assert 0 < metrics["loss"] < 0.5


def _error_of(cell: HostedCell, round_id: str, client_id: str) -> str:
    """Why a training failed."""
    training_id = cell.ask_training(round_id, client_id)

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = cell.service.get(f"/trainings/{training_id}").json()
        return found if found["state"] != "waiting" else None

    training = eventually(look, PATIENCE_S)
    assert training["state"] == "failed", training
    told = events_until(cell.service, "training.failed", round_id=round_id)
    assert [event["data"]["attempt"] for event in told if event["kind"] == "job.failed"] == [1]
    return str(training["error"])


def test_an_initial_model_that_does_not_fit_the_network_trains_nobody_and_is_not_evaluated(
    stack: Stack,
) -> None:
    cell = hosted_cell(stack.service, [10])
    cell.start_task()
    set_model(stack.service, cell.task_id)
    opened = open_round(stack.service, cell.task_id)
    (slot,) = opened["schedule"]["slots"]
    error = _error_of(cell, opened["round_id"], slot["client_id"])
    assert error.startswith("the model's tensors do not fit the network")
    assert get_task(stack.service, cell.task_id)["state"] == "running", (
        "an update of the client's own may come"
    )
    assert cell.send(opened, slot, make_model(1)).status_code == 201
    assert cell.round_over(opened["round_id"])["state"] == "aggregated"
    metrics = cell.evaluated_or_not(1)
    assert metrics["accuracy"] is None
    assert metrics["evaluation_error"].startswith("the model's tensors do not fit the network")
    assert get_task(stack.service, cell.task_id)["state"] == "running", "it has no target accuracy"


def test_a_task_without_a_data_set_trains_nobody_here_and_has_no_accuracy(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [10])
    cell.start_task(dataset=None)
    opened = open_round(stack.service, cell.task_id)
    (slot,) = opened["schedule"]["slots"]
    training = {"round_id": opened["round_id"], "client_id": slot["client_id"], "partition": 0}
    refused = stack.service.post("/trainings", json=training)
    assert (refused.status_code, refused.json()["cause"]) == (409, "NO_DATASET")
    assert cell.send(opened, slot, cell.model(0)).status_code == 201
    assert cell.round_over(opened["round_id"])["state"] == "aggregated"
    (metrics,) = stack.service.get(f"/tasks/{cell.task_id}/metrics").json()["rounds"]
    assert (metrics["model_version"], metrics["accuracy"], metrics["loss"]) == (1, None, None)
    database = Database(f"sqlite:///{stack.directory}/fedcs.sqlite")
    with database.engine.connect() as connection:
        asked = connection.execute(select(jobs.c.kind, jobs.c.subject)).all()
    database.close()
    assert not [
        kind
        for kind, subject in asked
        if kind is JobKind.EVALUATE_MODEL and subject["task_id"] == cell.task_id
    ]


def test_a_device_that_reported_more_samples_than_there_are_is_told(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [10, 6001])
    cell.start_task()
    opened = open_round(stack.service, cell.task_id)
    modest, boastful = cell.keys
    error = _error_of(cell, opened["round_id"], boastful)
    assert error == (
        "the device reported 6001 samples, but its partition of the data set (iid) has only 6000; "
        "report fewer samples"
    )
    cell.trained(opened["round_id"], modest)
