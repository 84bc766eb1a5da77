"""The migrations are part of what is installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import services

ROOT = Path(services.__file__).parents[1]
MIGRATE = """
import sys, migrations
from services.storage.database import Database
from services.storage.migration import is_up_to_date, migrate
database = Database(sys.argv[1])
migrate(database)
assert is_up_to_date(database)
print(migrations.__file__)
"""


def test_a_database_can_be_migrated_from_the_wheel_alone(tmp_path: Path, sqlite_url: str) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "."]
    built = subprocess.run([*build, ROOT], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "100 % unpacked"  # the file format of Alembic's settings would expand a %
    with zipfile.ZipFile(wheel) as file:
        file.extractall(unpacked)
    versions = {path.name for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert versions
    assert {path.name for path in (unpacked / "migrations" / "versions").glob("*.py")} == versions
    assert (unpacked / "migrations" / "env.py").is_file()

    run = [sys.executable, "-c", MIGRATE, sqlite_url]
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(run, check=False, capture_output=True, text=True, cwd=unpacked, env=environment)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(unpacked)
