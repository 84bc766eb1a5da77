"""What other users of the machine can read of a service's data: nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.startup import read_announcement
from services.storage.database import Database
from services.storage.migration import migrate
from tests.integration.cell import create_task, set_model
from tests.running_service import running_service


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _modes(directory: Path) -> dict[str, int]:
    """The permissions of a directory and of all that is in it."""
    paths = (directory, *directory.rglob("*"))
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in paths}


def test_only_the_owner_can_read_the_data_of_a_service(tmp_path: Path) -> None:
    data_dir = tmp_path / "deep" / "data"
    with running_service(data_dir) as service:
        set_model(service, create_task(service)["task_id"])
        found = _modes(data_dir)
    assert {name for name in found if name.startswith("fedcs.sqlite")} == {
        "fedcs.sqlite",
        "fedcs.sqlite-wal",
        "fedcs.sqlite-shm",
    }
    assert any(name.endswith(".safetensors") for name in found)
    for name, mode in found.items():
        assert mode == (0o700 if (data_dir / name).is_dir() else 0o600), (name, oct(mode))


def test_up_keeps_others_out_of_a_new_directory_and_names_an_open_one(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    complaints = {}
    for name in ("new", "open"):
        command = [sys.executable, "-m", "operator_api", "up", "--port", "0"]
        command += ["--data-dir", str(tmp_path / name)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert read_announcement(process.stdout) is not None
            modes = _modes(tmp_path / name)
            process.send_signal(signal.SIGTERM)
            _, complaints[name] = process.communicate(timeout=120)
        assert modes["."] == (0o700 if name == "new" else 0o755)
        assert (modes["operator.key"], modes["fedcs.sqlite"]) == (0o600, 0o600)
    assert "chmod" not in complaints["new"]
    assert f"Other users can read {tmp_path}/open: `chmod 700 {tmp_path}/open`" in complaints["open"]


def test_the_file_of_a_database_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "some.sqlite"
    path.touch(0o640)
    database = Database(f"sqlite:///{path}")
    migrate(database)
    assert path.stat().st_mode & 0o777 == 0o640  # somebody shares it with a group
    database.close()
