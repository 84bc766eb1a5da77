"""A backup as the operations guide says, while a round runs; all is lost, restored elsewhere, and goes on."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from sqlalchemy import create_engine, make_url, select, text

from services.storage.database import Database
from services.storage.model_store import S3Location, open_model_store, parse_s3_location
from services.storage.tables import model_versions, trainings, updates
from tests.databases import new_database
from tests.docs.operations_guide import run_documented
from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.faults.faulty_stack import SAMPLES, TERMS
from tests.running_stack import running_stack
from tests.s3_server import BUCKET
from tests.stateful.consistency import check_consistency

ROUND_S = 3600
ROUNDS = 3
CACHE_BYTES = 2**30


@dataclass(frozen=True)
class Site:
    """A directory to work in, and where the service keeps what it has to keep."""

    directory: Path
    database_url: str
    model_store: str

    @property
    def data_dir(self) -> Path:
        return self.directory / "fedcs-data"

    def run_documented(self, heading: str) -> None:
        """Do what the guide says, with the settings as an operator has them."""
        url = self.database_url.replace("+psycopg", "")
        run_documented(heading, self.directory, FEDCS_DATABASE_URL=url, FEDCS_MODEL_STORE=self.model_store)

    @contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """The whole stack."""
        with running_stack(
            self.data_dir,
            "--processes",
            "1",
            database_url=self.database_url,
            model_store=self.model_store,
            allowed_imports="tests.faults",
        ) as stack:
            yield stack.service


@pytest.mark.parametrize(
    "kind",
    [
        "SQLite",
        pytest.param("PostgreSQL", marks=pytest.mark.long),
        pytest.param(
            "PostgreSQL and S3",
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(shutil.which("aws") is None, reason="aws is not installed"),
            ],
        ),
    ],
)
def test_training_goes_on_where_the_backup_was_made(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lost = make_site(tmp_path / "lost", kind, request)
    with lost.running() as service:
        cell = hosted_cell(service, SAMPLES)
        cell.start_task(**TERMS, round_deadline_s=ROUND_S, final_deadline_s=ROUNDS * ROUND_S)
        for _ in range(ROUNDS - 1):
            assert cell.finish_round(cell.begin_round())["state"] == "aggregated"
        opened = cell.begin_round()
        first, *others = opened["schedule"]["slots"]
        upload(cell, opened, [first])
        lost.run_documented(f"Backing up {kind}")
        lost.run_documented("Checking a backup")
        upload(cell, opened, others)
        assert cell.round_over(opened["round_id"])["state"] == "aggregated"
        final_model = cell.model(ROUNDS)

    restored = make_site(tmp_path / "restored", kind, request)
    shutil.move(lost.directory / "backup", restored.directory)
    destroy(lost, request)
    restored.run_documented(f"Restoring {kind}")
    nothing_is_missing(restored)
    with restored.running() as service:
        cell = replace(cell, service=service)
        task = cell.task_in("running")
        assert task["model_version"] == ROUNDS - 1, "the third round was under way"
        upload(cell, opened, others)
        over = cell.round_over(opened["round_id"])
        assert (over["state"], over["received"]) == ("aggregated", len(SAMPLES))
        assert cell.model(ROUNDS) == final_model
        assert cell.task_in("finished", "failed")["state"] == "finished"
    database = Database(restored.database_url)
    check_consistency(database)
    database.close()


@pytest.mark.parametrize("name", [f"ab/{'ab' * 32}.safetensors", f"{'ab' * 32}/01.safetensors"])
def test_a_damaged_file_in_a_backup_is_noticed(name: str, tmp_path: Path) -> None:
    content = b"what it was"
    file = tmp_path / "backup" / "models" / name.replace("ab" * 32, hashlib.sha256(content).hexdigest())
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    run_documented("Checking a backup", tmp_path)
    file.write_bytes(b"not what it was")
    with pytest.raises(subprocess.CalledProcessError):
        run_documented("Checking a backup", tmp_path)


def make_site(directory: Path, kind: str, request: pytest.FixtureRequest) -> Site:
    """A new directory, a database that nobody has used, and an empty model store."""
    data_dir = directory / "fedcs-data"
    data_dir.mkdir(parents=True)
    database_url, model_store = f"sqlite:///{data_dir}/fedcs.sqlite", str(data_dir / "models")
    if kind.startswith("PostgreSQL"):
        database_url = new_database("postgresql", directory, request.getfixturevalue("postgres_url"))
    if kind.endswith("S3"):
        request.getfixturevalue("s3")
        model_store = str(S3Location(BUCKET, uuid4().hex))
    return Site(directory, database_url, model_store)


def destroy(site: Site, request: pytest.FixtureRequest) -> None:
    """Let everything be gone: files, and the database and the models if they are elsewhere."""
    shutil.rmtree(site.directory)
    if not site.database_url.startswith("sqlite"):
        url = make_url(site.database_url)
        server = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {url.database} WITH (FORCE)"))
        server.dispose()
    if site.model_store.startswith("s3:"):
        s3, place = request.getfixturevalue("s3"), parse_s3_location(site.model_store)
        for name in s3.names(place):
            s3.delete(place, name)


def upload(cell: HostedCell, opened: dict[str, Any], slots: list[dict[str, Any]]) -> None:
    """Send what the devices of these slots have trained."""
    for slot in slots:
        response = cell.send(opened, slot, cell.trained(opened["round_id"], slot["client_id"]))
        assert response.status_code == 201, response.text


def nothing_is_missing(site: Site) -> None:
    """Every file that the database needs is there, and is what it was."""
    database = Database(site.database_url)
    with database.engine.connect() as connection:
        versions = connection.execute(select(model_versions.c.digest)).scalars().all()
        received = connection.execute(select(updates.c.digest)).scalars().all()
        trained = connection.execute(select(trainings.c.digest)).scalars().all()
    with database.reading() as store:
        needed = store.models.referenced([digest for digest in (*versions, *received, *trained) if digest])
    assert len(set(versions)) == ROUNDS
    assert needed > set(versions), "an update of the open round as well"
    on_s3 = site.model_store.startswith("s3:")
    place = parse_s3_location(site.model_store) if on_s3 else Path(site.model_store)
    models = open_model_store(place, site.directory / "looked-at", CACHE_BYTES)
    for digest in needed:
        assert hashlib.sha256(models.path_of(digest).read_bytes()).hexdigest() == digest
    database.close()
