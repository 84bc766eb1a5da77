"""A new version finds the database of an older one; an old version refuses that of a newer one."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from services.storage.database import Database
from services.storage.migration import downgrade
from tests.fork_server import run_module
from tests.integration.cell import started_round
from tests.integration.rounds_setup import get_round, upload_all
from tests.running_service import OPERATOR_KEY, running_service


def test_a_round_goes_on_after_an_upgrade(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        opened, keys = started_round(service, 2)
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    downgrade(database, "0001")
    database.close()
    with running_service(tmp_path) as service:
        assert service.get("/readyz").status_code == 200
        assert get_round(service, opened["round_id"]) == opened
        upload_all(service, opened, keys)
        assert get_round(service, opened["round_id"])["state"] == "aggregating"


def test_the_way_back_is_the_copy_made_before(tmp_path: Path) -> None:
    file, copy = tmp_path / "fedcs.sqlite", tmp_path / "copy"
    with running_service(tmp_path) as service:
        opened, _ = started_round(service)
    shutil.copy(file, copy)
    with closing(sqlite3.connect(file)) as upgraded:
        upgraded.execute("UPDATE alembic_version SET version_num = 'newer'")
        upgraded.commit()
    settings = {"FEDCS_OPERATOR_KEY": OPERATOR_KEY, "FEDCS_DATA_DIR": str(tmp_path), "FEDCS_PORT": "0"}
    refused = run_module("operator_api", "serve", env=os.environ | settings)
    assert refused.returncode == 1
    assert "the database was made by another version of this service" in refused.stderr
    copy.rename(file)
    with running_service(tmp_path) as service:
        assert get_round(service, opened["round_id"]) == opened
