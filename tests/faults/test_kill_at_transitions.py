"""The API is killed at the commit of every transition, before it or after it, and started again.

What was committed is there, what was not is not, and whoever asks again has done it once.
"""

import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from services.domain.jobs import JobKind, JobState
from services.storage.database import Database
from services.storage.tables import events, jobs, rounds, updates
from tests.databases import new_database
from tests.faults.crashing_service import CrashingService, crash_point_server
from tests.integration.cell import (
    as_client,
    create_task,
    enrol,
    fresh_name,
    make_model,
    open_round,
    report_all,
    set_model,
    upload,
)
from tests.stateful.consistency import check_consistency

WHEN = ("before", "after")
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    with crash_point_server(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture
def on_sqlite(server: subprocess.Popen[str], tmp_path: Path) -> CrashingService:
    """With data of its own: the reconciler need not wait for the lease of one killed in another test."""
    return CrashingService(server, tmp_path, new_database("sqlite", tmp_path, ""))


@pytest.fixture
def on_postgresql(server: subprocess.Popen[str], tmp_path: Path, postgres_url: str) -> CrashingService:
    return CrashingService(server, tmp_path, new_database("postgresql", tmp_path, postgres_url))


@dataclass
class Cell:
    """A task of its own with two clients, as far as it got before the crash."""

    task_id: str
    keys: dict[str, str]
    round_id: str = ""

    @property
    def clients(self) -> list[str]:
        return list(self.keys)


def prepare(service: httpx.Client, **terms: object) -> Cell:
    """A ready task."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, 2, labels)
    report_all(service, list(keys))
    task_id = create_task(service, labels=labels, **terms)["task_id"]
    set_model(service, task_id)
    return Cell(task_id, keys)


def prepare_round(service: httpx.Client, **terms: object) -> Cell:
    """A task with a scheduled round, both clients selected."""
    cell = prepare(service, **terms)
    cell.round_id = open_round(service, cell.task_id)["round_id"]
    return cell


def send(service: httpx.Client, cell: Cell, client_id: str, elapsed_s: str | None = "10") -> httpx.Response:
    """Upload as one of the clients."""
    with as_client(service, cell.keys[client_id]) as client:
        return upload(client, cell.round_id, client_id, fedcs_elapsed_s=elapsed_s, fedcs_data_samples="1")


def dies(service: CrashingService, client: httpx.Client, method: str, path: str, **request: Any) -> None:
    """Send a request that the service does not live to answer."""
    service.arm()
    with pytest.raises(httpx.TransportError):
        client.request(method, path, **request)


def wait_until(service: httpx.Client, path: str, state: str) -> dict[str, Any]:
    """Look again and again until something is in a state."""
    until = time.monotonic() + PATIENCE_S
    while True:
        found: dict[str, Any] = service.get(path).json()
        if found["state"] == state:
            return found
        assert time.monotonic() < until, f"still {found['state']}"
        time.sleep(0.05)


class Kept:
    """What is in the database while no service runs."""

    def __init__(self, service: CrashingService) -> None:
        self._database = Database(service.database_url)
        check_consistency(self._database)

    def events(self, kind: str, **of: str) -> int:
        query = select(func.count()).select_from(events).where(events.c.kind == kind)
        for name, value in of.items():
            query = query.where(events.c[name] == value)
        return self._number(query)

    def aggregations(self, cell: Cell) -> list[JobState]:
        """The states of the jobs to aggregate the cell's round."""
        query = (
            select(jobs.c.state)
            .join_from(jobs, rounds, rounds.c.serial == jobs.c.round_serial)
            .where(rounds.c.round_id == cell.round_id, jobs.c.kind == JobKind.AGGREGATE_ROUND)
        )
        with self._database.engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def updates(self, cell: Cell) -> list[str]:
        """Whose updates the cell's round has."""
        query = (
            select(updates.c.client_id)
            .join_from(updates, rounds, rounds.c.serial == updates.c.round_serial)
            .where(rounds.c.round_id == cell.round_id)
        )
        with self._database.engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def _number(self, query: Any) -> int:
        with self._database.engine.connect() as connection:
            return int(connection.execute(query).scalar_one())


@pytest.mark.parametrize("when", WHEN)
def test_a_task_is_created_once(on_sqlite: CrashingService, when: str) -> None:
    name = fresh_name("task")
    request: dict[str, Any] = {
        "json": {"name": name, "round_deadline_s": 100},
        "headers": {"Idempotency-Key": str(uuid.uuid4())},
    }
    with on_sqlite.dying("task.initializing", when) as service:
        dies(on_sqlite, service, "POST", "/tasks", **request)
    with on_sqlite.running() as service:
        before = [task for task in service.get("/tasks").json() if task["name"] == name]
        assert len(before) == (when == "after")
        again = service.post("/tasks", **request)
        assert again.status_code == 201
        after = [task for task in service.get("/tasks").json() if task["name"] == name]
        assert [task["task_id"] for task in after] == [again.json()["task_id"]]
    with Kept(on_sqlite) as kept:
        assert kept.events("task.initializing", task_id=again.json()["task_id"]) == 1


@pytest.mark.parametrize("when", WHEN)
def test_an_initial_model_is_set_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("task.ready", when) as service:
        task_id = create_task(service)["task_id"]
        dies(on_sqlite, service, "PUT", f"/tasks/{task_id}/models/0", content=make_model())
    with on_sqlite.running() as service:
        expected = "ready" if when == "after" else "initializing"
        assert service.get(f"/tasks/{task_id}").json()["state"] == expected
        assert service.get(f"/tasks/{task_id}/models/0").status_code == (200 if when == "after" else 404)
        assert set_model(service, task_id) == service.get(f"/tasks/{task_id}/models/0").content
        assert service.get(f"/tasks/{task_id}").json()["state"] == "ready"
    with Kept(on_sqlite) as kept:
        assert kept.events("task.ready", task_id=task_id) == 1


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("window_s", [0, 1000])
def test_a_round_is_opened_once(on_sqlite: CrashingService, when: str, window_s: float) -> None:
    opened_round_is_told_once(on_sqlite, when, window_s)


@pytest.mark.parametrize("when", WHEN)
def test_a_round_is_opened_once_on_postgresql(on_postgresql: CrashingService, when: str) -> None:
    opened_round_is_told_once(on_postgresql, when, 0)


def opened_round_is_told_once(crashing: CrashingService, when: str, window_s: float) -> None:
    kind = "round.requesting" if window_s else "round.scheduled"
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    with crashing.dying(kind, when) as service:
        cell = prepare(service, report_window_s=window_s)
        dies(crashing, service, "POST", "/rounds", json={"task_id": cell.task_id}, headers=headers)
    with crashing.running() as service:
        of_task = {"task_id": cell.task_id}
        assert len(service.get("/rounds", params=of_task).json()) == (when == "after")
        assert service.get(f"/tasks/{cell.task_id}").json()["rounds"] == (when == "after")
        again = service.post("/rounds", json=of_task, headers=headers)
        assert again.status_code == 201
        assert again.json()["state"] == kind.removeprefix("round.")
        (only,) = service.get("/rounds", params=of_task).json()
        assert only["round_id"] == again.json()["round_id"]
    with Kept(crashing) as kept:
        assert kept.events(kind, task_id=cell.task_id) == 1


@pytest.mark.parametrize("when", WHEN)
def test_collection_begins_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.collecting", when) as service:
        cell = prepare_round(service)
        path = f"/rounds/{cell.round_id}"
        with as_client(service, cell.keys[cell.clients[0]]) as client:
            dies(on_sqlite, client, "GET", f"{path}/model")
    with on_sqlite.running() as service:
        assert service.get(path).json()["state"] == ("collecting" if when == "after" else "scheduled")
        with as_client(service, cell.keys[cell.clients[0]]) as client:
            assert client.get(f"{path}/model").content == make_model()
        assert service.get(path).json()["state"] == "collecting"
    with Kept(on_sqlite) as kept:
        assert kept.events("round.collecting", round_id=cell.round_id) == 1


@pytest.mark.parametrize("when", WHEN)
def test_an_update_is_received_once(on_sqlite: CrashingService, when: str) -> None:
    update_is_received_once(on_sqlite, when)


@pytest.mark.parametrize("when", WHEN)
def test_an_update_is_received_once_on_postgresql(on_postgresql: CrashingService, when: str) -> None:
    update_is_received_once(on_postgresql, when)


def update_is_received_once(crashing: CrashingService, when: str) -> None:
    with crashing.dying("update.received", when) as service:
        cell = prepare_round(service)
        first, second = cell.clients
        update = make_model(seed=uuid.uuid4().int % 2**32)
        files = kept_files(crashing.model_store)
        crashing.arm()
        with as_client(service, cell.keys[first]) as client, pytest.raises(httpx.TransportError):
            upload(client, cell.round_id, first, update)
    left = kept_files(crashing.model_store) - files
    assert [path.read_bytes() for path in left] == [update], "it is kept before it is recorded"
    with Kept(crashing) as kept:
        assert kept.updates(cell) == ([first] if when == "after" else [])
    with crashing.running() as service:
        path = f"/rounds/{cell.round_id}"
        assert service.get(path).json()["received"] == (when == "after")
        with as_client(service, cell.keys[first]) as client:
            again = upload(client, cell.round_id, first, update)
        assert again.status_code == (200 if when == "after" else 201), again.text
        assert service.get(path).json()["received"] == 1
        assert send(service, cell, second).status_code == 201
        assert service.get(path).json()["state"] == "aggregating"
    with Kept(crashing) as kept:
        assert kept.aggregations(cell) == [JobState.WAITING]
        assert sorted(kept.updates(cell)) == sorted(cell.clients)


def kept_files(model_store: Path) -> set[Path]:
    return set(model_store.glob("??/*.safetensors"))


@pytest.mark.parametrize("when", WHEN)
def test_the_last_update_ends_collection_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.aggregating", when) as service:
        cell = prepare_round(service)
        first, second = cell.clients
        assert send(service, cell, first).status_code == 201
        on_sqlite.arm()
        with pytest.raises(httpx.TransportError):
            send(service, cell, second)
    with Kept(on_sqlite) as kept:
        assert kept.aggregations(cell) == ([JobState.WAITING] if when == "after" else [])
        assert sorted(kept.updates(cell)) == sorted(cell.clients if when == "after" else [first])
    with on_sqlite.running() as service:
        assert send(service, cell, second).status_code == (200 if when == "after" else 201)
        assert service.get(f"/rounds/{cell.round_id}").json()["state"] == "aggregating"
    with Kept(on_sqlite) as kept:
        assert kept.aggregations(cell) == [JobState.WAITING]


@pytest.mark.parametrize("when", WHEN)
def test_a_round_is_closed_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.aggregating", when) as service:
        cell = prepare_round(service)
        assert send(service, cell, cell.clients[0]).status_code == 201
        dies(on_sqlite, service, "POST", f"/rounds/{cell.round_id}/close")
    with on_sqlite.running() as service:
        path = f"/rounds/{cell.round_id}"
        assert service.get(path).json()["state"] == ("aggregating" if when == "after" else "collecting")
        assert service.post(f"{path}/close").json()["state"] == "aggregating"
    with Kept(on_sqlite) as kept:
        assert kept.aggregations(cell) == [JobState.WAITING]
        assert kept.updates(cell) == [cell.clients[0]]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("kind", ["round.failed", "task.finished"])
def test_the_last_round_fails_and_ends_the_task_once(
    on_sqlite: CrashingService, when: str, kind: str
) -> None:
    with on_sqlite.dying(kind, when) as service:
        cell = prepare_round(service, round_deadline_s=100, final_deadline_s=100)
        dies(on_sqlite, service, "POST", f"/rounds/{cell.round_id}/close")
    with on_sqlite.running() as service:
        paths = (f"/tasks/{cell.task_id}", f"/rounds/{cell.round_id}")
        states = [service.get(path).json()["state"] for path in paths]
        assert states == (["finished", "failed"] if when == "after" else ["running", "scheduled"])
        assert service.post(f"/rounds/{cell.round_id}/close").json()["outcome"] == "TOO_FEW_UPDATES"
    with Kept(on_sqlite) as kept:
        assert kept.events("round.failed", round_id=cell.round_id) == 1
        assert kept.events("task.finished", task_id=cell.task_id) == 1


@pytest.mark.parametrize("when", WHEN)
def test_a_task_is_cancelled_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("task.cancelled", when) as service:
        cell = prepare_round(service)
        dies(on_sqlite, service, "POST", f"/tasks/{cell.task_id}/cancel")
    with on_sqlite.running() as service:
        states = [
            service.get(path).json()["state"]
            for path in (f"/tasks/{cell.task_id}", f"/rounds/{cell.round_id}")
        ]
        assert states == (["cancelled", "cancelled"] if when == "after" else ["running", "scheduled"])
        assert service.post(f"/tasks/{cell.task_id}/cancel").json()["state"] == "cancelled"
    with Kept(on_sqlite) as kept:
        assert kept.events("task.cancelled", task_id=cell.task_id) == 1
        assert kept.events("round.cancelled", task_id=cell.task_id) == 1


@pytest.mark.parametrize("when", WHEN)
def test_the_reconciler_ends_a_report_window_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.scheduled", when) as service:
        cell = prepare(service, report_window_s=0.5)
        cell.round_id = open_round(service, cell.task_id)["round_id"]
        report_all(service, cell.clients)
        on_sqlite.arm()
    with Kept(on_sqlite) as kept:
        assert kept.events("round.scheduled", round_id=cell.round_id) == (when == "after")
    with on_sqlite.running() as service:
        assert wait_until(service, f"/rounds/{cell.round_id}", "scheduled")["selected"] == 2
    with Kept(on_sqlite) as kept:
        assert kept.events("round.scheduled", round_id=cell.round_id) == 1


QUICK = {"clock": "wall", "model_size_bytes": 1000, "local_epochs": 1, "round_deadline_s": 5}


@pytest.mark.parametrize("when", WHEN)
def test_the_reconciler_closes_a_round_at_its_deadline_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.aggregating", when) as service:
        cell = prepare(service, **(QUICK | {"aggregation_s": 1}))
        report_all(service, cell.clients, data_samples=1)
        cell.round_id = open_round(service, cell.task_id)["round_id"]
        assert send(service, cell, cell.clients[0], elapsed_s=None).status_code == 201
        on_sqlite.arm()
    with Kept(on_sqlite) as kept:
        assert kept.aggregations(cell) == ([JobState.WAITING] if when == "after" else [])
        assert kept.updates(cell) == [cell.clients[0]]
    with on_sqlite.running() as service:
        assert wait_until(service, f"/rounds/{cell.round_id}", "aggregating")["received"] == 1
    with Kept(on_sqlite) as kept:
        assert kept.aggregations(cell) == [JobState.WAITING]
        assert kept.events("round.aggregating", round_id=cell.round_id) == 1


@pytest.mark.parametrize("when", WHEN)
def test_the_reconciler_opens_the_next_round_once(on_sqlite: CrashingService, when: str) -> None:
    with on_sqlite.dying("round.scheduled", when) as service:
        cell = prepare_round(service, auto_advance=True)
        on_sqlite.arm()
        assert service.post(f"/rounds/{cell.round_id}/close").json()["outcome"] == "TOO_FEW_UPDATES"
    with Kept(on_sqlite) as kept:
        assert kept.events("round.scheduled", task_id=cell.task_id) == 1 + (when == "after")
    with on_sqlite.running() as service:
        until = time.monotonic() + PATIENCE_S
        while service.get(f"/tasks/{cell.task_id}").json()["rounds"] < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        numbers = [
            round_["number"] for round_ in service.get("/rounds", params={"task_id": cell.task_id}).json()
        ]
        assert numbers == [2, 1]
        service.post(f"/tasks/{cell.task_id}/cancel").raise_for_status()
    with Kept(on_sqlite) as kept:
        assert kept.events("round.requesting", task_id=cell.task_id) == 2
