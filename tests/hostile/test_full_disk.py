"""With no room left the service says so, keeps nothing by halves, and goes on when there is room again."""

import resource
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, text

from tests.databases import new_database
from tests.integration.cell import (
    assert_problem,
    content_digest,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    make_model,
    open_round,
    report_all,
    resources,
)
from tests.integration.rounds_setup import slot_of, upload_as
from tests.running_service import running_service, service_process

_FULL_AT_BYTES = 8_000_000
"""More than the database and its log have in these tests, and less than a model."""


def large_model(seed: int) -> bytes:
    return make_model(seed, large=np.full(3_000_000, seed, np.float32))


def test_models_that_do_not_fit(tmp_path: Path) -> None:
    models = tmp_path / "models"
    labels = {"cell": fresh_name("cell")}
    with service_process(tmp_path, None) as (service, process):
        ((client_id, key),) = enrol(service, 1, labels).items()
        report_all(service, [client_id], throughput_bps=1e9)
        task_id = create_task(service, labels=labels)["task_id"]
        path, model = f"/tasks/{task_id}/models/0", large_model(0)
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)

        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_FULL_AT_BYTES, hard))
        refused = service.put(path, content=model, headers=content_digest(model))
        assert_problem(refused, 507, "STORAGE_FULL")
        assert not [found for found in models.rglob("*") if found.is_file()]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert service.put(path, content=model, headers=content_digest(model)).status_code == 200

        round_id, update = open_round(service, task_id)["round_id"], large_model(1)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_FULL_AT_BYTES, hard))
        for _ in range(3):
            assert_problem(upload_as(service, key, round_id, client_id, update=update), 507, "STORAGE_FULL")
        assert slot_of(service, round_id, client_id)["rejections"] == 0, "it is not the client's fault"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert upload_as(service, key, round_id, client_id, update=update).status_code == 201
    kept = [found for found in models.rglob("*") if found.is_file()]
    assert {found.read_bytes() for found in kept} == {model, update}


def test_a_full_sqlite_database(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        client_id, _ = enrol_one(service)
    full = "tests.hostile.service_with_full_database"
    with service_process(tmp_path, None, module=full) as (service, _):
        batch = {"clients": [{"labels": {"filling": "x" * 100}} for _ in range(2000)]}
        assert_problem(service.post("/clients/batch", json=batch), 507, "STORAGE_FULL")
        reports = [service.post("/reports", json=resources(client_id)) for _ in range(500)]
        statuses = [response.status_code for response in reports]
        assert set(statuses) == {201, 507}, "the first ones find room on pages that are not full"
        assert_problem(reports[-1], 507, "STORAGE_FULL")
        assert service.get("/clients").headers["X-Total-Count"] == "1"
        stored = service.get(f"/clients/{client_id}/reports").headers["X-Total-Count"]
        assert int(stored) == statuses.count(201)


def test_a_full_postgresql_database(tmp_path: Path, postgres_url: str) -> None:
    """The server is told to fail as it does when it cannot extend a file."""
    url = new_database("postgresql", tmp_path, postgres_url)
    with running_service(tmp_path, database_url=url) as service:
        client_id, _ = enrol_one(service)
        _run(
            url,
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$",
            "CREATE TRIGGER full_clients BEFORE INSERT ON clients EXECUTE FUNCTION fail()",
            "CREATE TRIGGER full_reports BEFORE INSERT ON resource_reports EXECUTE FUNCTION fail()",
        )
        assert_problem(service.post("/clients", json={}), 507, "STORAGE_FULL")
        assert_problem(service.post("/reports", json=resources(client_id)), 507, "STORAGE_FULL")
        _run(url, "DROP FUNCTION fail CASCADE")
        assert service.post("/clients", json={}).status_code == 201
        assert service.post("/reports", json=resources(client_id)).status_code == 201


def _run(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
