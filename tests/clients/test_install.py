"""The client library alone, installed into a new environment."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
MAX_MEGABYTES = 120
MAX_PACKAGES = 25
EXTRAS = {
    "serve": "server",
    "worker": "trainer",
    "simulate --key k --url http://127.0.0.1:1": "simulator",
}


def test_the_library_is_small_and_a_missing_extra_is_named(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    programs = environment / "bin"
    subprocess.run([str(programs / "pip"), "install", "--quiet", str(ROOT)], check=True)
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    packages = len(list(environment.rglob("*.dist-info")))
    print(f"{megabytes:.0f} MB, {packages} packages")
    assert megabytes < MAX_MEGABYTES
    assert packages < MAX_PACKAGES
    library = "from fedcs_client import Api, AsyncApi, Device; import fedcs_client.flower"
    subprocess.run([str(programs / "python"), "-c", library], check=True, cwd=tmp_path)
    for command, extra in EXTRAS.items():
        done = subprocess.run(
            [str(programs / "fedcs"), *command.split()],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 1, done.stdout
        assert f"pip install 'fedcs-operator[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
