"""A database without content beside a model store with files: the service refuses to start."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import inspect

from operator_api.service import bootstrap
from services.errors import ServiceStartError
from services.settings import Settings, load_settings
from services.storage.database import Database
from tests.integration.cell import create_task, enrol_one, set_model
from tests.integration.storage import factories
from tests.integration.storage.model_store_backends import keep
from tests.running_service import OPERATOR_KEY, running_service, service_process
from tests.s3_server import BUCKET


def _settings(data_dir: Path, database_url: str, **given: str) -> Settings:
    return load_settings(
        Settings, operator_key=OPERATOR_KEY, data_dir=data_dir, database_url=database_url, **given
    )


def test_an_empty_database_beside_models_is_refused(database_url: str, tmp_path: Path) -> None:
    settings = _settings(tmp_path, database_url)
    first = bootstrap(settings)  # the store is empty as well: a first start
    first.database.close()
    keep(first.models, b"a model")
    for _ in range(2):
        with pytest.raises(ServiceStartError, match="--accept-empty-database") as refused:
            bootstrap(settings)
        said = str(refused.value)
        assert str(tmp_path / "models") in said
        assert str(Database(database_url).engine.url) in said
    accepted = bootstrap(settings, accept_empty_database=True)
    with accepted.database.unit_of_work() as uow:
        uow.events.record("clients.enrolled", factories.NOW, number=1)
        uow.commit()
    accepted.database.close()
    bootstrap(settings).database.close()  # something was recorded in it since


def test_a_refused_database_is_left_as_it_was(database_url: str, tmp_path: Path) -> None:
    settings = _settings(tmp_path, database_url)
    keep(bootstrap(_settings(tmp_path, f"sqlite:///{tmp_path}/other.sqlite")).models, b"a model")
    with pytest.raises(ServiceStartError):
        bootstrap(settings)
    database = Database(database_url)
    assert inspect(database.engine).get_table_names() == []  # a backup can be restored into it
    database.close()


@pytest.mark.usefixtures("s3")
def test_the_same_with_a_store_on_s3(tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/{uuid4().hex}"
    settings = _settings(tmp_path, f"sqlite:///{tmp_path}/some.sqlite", model_store=place)
    first = bootstrap(settings)
    first.database.close()
    keep(first.models, b"a model")
    with pytest.raises(ServiceStartError, match="s3://"):
        bootstrap(settings)


def test_commands_refuse_a_database_whose_journal_was_deleted(tmp_path: Path) -> None:
    with service_process(tmp_path, None) as (service, process):
        set_model(service, create_task(service)["task_id"])
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / "fedcs.sqlite-wal").unlink()
    environment = {
        "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        "FEDCS_DATA_DIR": str(tmp_path),
        "FEDCS_PORT": "0",
    }
    for command in ("serve", "up"):
        done = subprocess.run(
            [sys.executable, "-m", "operator_api", command],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 1, done.stdout
        assert done.stderr.startswith("fedcs: the database sqlite:///"), done.stderr
        assert done.stderr.count("\n") == 1
    with running_service(tmp_path, "--accept-empty-database") as service:
        enrol_one(service)
