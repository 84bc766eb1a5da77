"""The orchestrator of the documentation, on each kind of database."""

import subprocess
import sys
from pathlib import Path

import httpx

from tests.running_service import OPERATOR_KEY

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "orchestrate.py"


def test_the_documented_orchestrator_runs_a_round(service_on_each: httpx.Client) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, str(service_on_each.base_url), OPERATOR_KEY],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "100 clients enrolled" in done.stdout
    assert "the round is aggregating" in done.stdout
