"""schemathesis against a running service: all checks, all phases, over the whole OpenAPI document.

What it is to do is in ``schemathesis.toml``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.known_resources import SeedData
from tests.contract.seed_data import prepare_cell
from tests.running_service import OPERATOR_KEY, running_service, widen_default_cell

ROOT = Path(__file__).parents[2]
ALL_PHASES = ("Examples", "Coverage", "Fuzzing", "Stateful")
QUICK_PHASES = ("Examples", "Fuzzing", "Stateful")
QUICK = ("--phases", ",".join(QUICK_PHASES).lower(), "--max-examples", "2")
"""A sample: two requests of each phase for each operation."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[httpx.Client]:
    """A service for each run: schemathesis leaves nothing as it was."""
    with running_service(tmp_path) as client:
        widen_default_cell(client)
        yield client


def schemathesis(service: httpx.Client, prepared: SeedData, *options: str) -> str:
    """Run it; its report, which must tell of no failure."""
    environment = {"FEDCS_OPERATOR_KEY": OPERATOR_KEY, "FEDCS_PREPARED": json.dumps(prepared)}
    url = str(service.base_url.join("/openapi.json"))
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "run", url]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("phases", "options"),
    [
        pytest.param(QUICK_PHASES, QUICK, id="sample"),
        pytest.param(ALL_PHASES, (), marks=pytest.mark.long, id="all"),
    ],
)
def test_the_service_does_what_its_openapi_document_says(
    phases: tuple[str, ...], options: tuple[str, ...], service: httpx.Client
) -> None:
    report = schemathesis(service, prepare_cell(service), *options)
    for phase in phases:
        assert f"✅ {phase}" in report, report
    operations = sum(len(path) for path in service.get("/openapi.json").json()["paths"].values())
    assert f"Tested: {operations - 1}" in report, "all but /events"


@pytest.mark.long
@pytest.mark.parametrize("seed", ["1", "2"])
def test_links_lead_through_the_life_of_a_round(service: httpx.Client, seed: str) -> None:
    schemathesis(service, prepare_cell(service), "--phases", "stateful", "--seed", seed)
