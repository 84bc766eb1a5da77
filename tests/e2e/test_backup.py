"""A backup as the operations guide says, while a round runs; all is lost, restored elsewhere, and goes on."""

import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, select, text

from services.storage.database import Database
from services.storage.model_store import LocalModelStore
from services.storage.tables import model_versions, trainings, updates
from tests.databases import new_database
from tests.docs.operations_guide import run_documented
from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.faults.faulty_stack import SAMPLES, TERMS
from tests.running_stack import running_stack
from tests.stateful.consistency import check_consistency

ROUND_S = 3600
ROUNDS = 3


@pytest.mark.parametrize("kind", ["SQLite", "PostgreSQL"])
def test_training_goes_on_where_the_backup_was_made(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres_url = request.getfixturevalue("postgres_url") if kind == "PostgreSQL" else ""
    lost, restored = tmp_path / "lost", tmp_path / "restored"

    url = make_site(lost, postgres_url)
    with running_stack(
        lost / "fedcs-data", "--processes", "1", database_url=url, allowed_imports="tests.faults"
    ) as stack:
        cell = hosted_cell(stack.service, SAMPLES)
        cell.start_task(**TERMS, round_deadline_s=ROUND_S, final_deadline_s=ROUNDS * ROUND_S)
        for _ in range(ROUNDS - 1):
            assert cell.finish_round(cell.begin_round())["state"] == "aggregated"
        opened = cell.begin_round()
        first, *others = opened["schedule"]["slots"]
        upload(cell, opened, [first])
        run_documented(f"Backing up {kind}", lost, **setting(url))
        run_documented("Checking a backup", lost)
        upload(cell, opened, others)
        assert cell.round_over(opened["round_id"])["state"] == "aggregated"
        final_model = cell.model(ROUNDS)

    restored_url = make_site(restored, postgres_url)
    shutil.move(lost / "backup", restored)
    destroy(lost, url)
    run_documented(f"Restoring {kind}", restored, **setting(restored_url))
    nothing_is_missing(restored / "fedcs-data", restored_url)
    with running_stack(
        restored / "fedcs-data",
        "--processes",
        "1",
        database_url=restored_url,
        allowed_imports="tests.faults",
    ) as stack:
        cell = replace(cell, service=stack.service)
        task = cell.task_in("running")
        assert task["model_version"] == ROUNDS - 1, "the third round was under way"
        upload(cell, opened, others)
        over = cell.round_over(opened["round_id"])
        assert (over["state"], over["received"]) == ("aggregated", len(SAMPLES))
        assert cell.model(ROUNDS) == final_model
        assert cell.task_in("finished", "failed")["state"] == "finished"
    database = Database(restored_url)
    check_consistency(database)
    database.close()


def test_a_damaged_file_in_a_backup_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "backup" / "models" / "ab" / f"{'ab' * 32}.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not what it was")
    with pytest.raises(subprocess.CalledProcessError):
        run_documented("Checking a backup", tmp_path)


def setting(url: str) -> dict[str, str]:
    """The database as an operator names it."""
    return {"FEDCS_DATABASE_URL": url.replace("+psycopg", "")}


def make_site(directory: Path, postgres_url: str) -> str:
    """A directory to work in, and the URL of a database that nobody has used."""
    (directory / "fedcs-data").mkdir(parents=True)
    if postgres_url:
        return new_database("postgresql", directory, postgres_url)
    return f"sqlite:///{directory}/fedcs-data/fedcs.sqlite"


def destroy(directory: Path, url: str) -> None:
    """Let everything be gone: files, and the database if it is elsewhere."""
    shutil.rmtree(directory)
    if not url.startswith("sqlite"):
        server = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))
        server.dispose()


def upload(cell: HostedCell, opened: dict[str, Any], slots: list[dict[str, Any]]) -> None:
    """Send what the devices of these slots have trained."""
    for slot in slots:
        response = cell.send(opened, slot, cell.trained(opened["round_id"], slot["client_id"]))
        assert response.status_code == 201, response.text


def nothing_is_missing(data_dir: Path, url: str) -> None:
    """Every file that the database needs is there, and is what it was."""
    database = Database(url)
    with database.engine.connect() as connection:
        versions = connection.execute(select(model_versions.c.digest)).scalars().all()
        received = connection.execute(select(updates.c.digest)).scalars().all()
        trained = connection.execute(select(trainings.c.digest)).scalars().all()
    with database.reading() as store:
        needed = store.models.referenced([digest for digest in (*versions, *received, *trained) if digest])
    assert len(set(versions)) == ROUNDS
    assert needed > set(versions), "an update of the open round as well"
    models = LocalModelStore(data_dir / "models")
    for digest in needed:
        assert hashlib.sha256(models.path_of(digest).read_bytes()).hexdigest() == digest
    database.close()
