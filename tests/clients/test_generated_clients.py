"""The OpenAPI document in the hands of linters and generators, in environments of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.integration.cell import create_task, fresh_name, resources, set_model
from tests.running_service import OPERATOR_KEY

pytestmark = pytest.mark.long

GENERATORS = ("openapi-python-client==0.29.1", "openapi-generator-cli==7.26.0")
REDOCLY = "@redocly/cli@2.77.0"
LANGUAGES = ("kotlin", "python", "swift5", "typescript-fetch")
DRIVER = """
import sys
from fed_cs_operator_client import AuthenticatedClient
from fed_cs_operator_client.api.clients import enrol_client, get_client
from fed_cs_operator_client.api.reports import report_resources
from fed_cs_operator_client.api.rounds import get_schedule, open_round
from fed_cs_operator_client.models import EnrolmentRequest, ReportRequest, RoundRequest
from fed_cs_operator_client.models.enrolment_request_labels import EnrolmentRequestLabels

url, key, task_id, cell, *names = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
for name in names:
    labels = EnrolmentRequestLabels.from_dict({"cell": cell})
    made = enrol_client.sync(client=client, body=EnrolmentRequest(client_id=name, labels=labels))
    assert made.labels.to_dict() == {"cell": cell}, made
    report = ReportRequest.from_dict(RESOURCES | {"client_id": name})
    report_resources.sync(client=client, body=report)
opened = open_round.sync(client=client, body=RoundRequest(task_id=task_id))
schedule = get_schedule.sync(round_id=opened.round_id, client=client)
assert {slot.client_id for slot in schedule.slots} == set(names), schedule
"""


def run(*command: str, cwd: Path | None = None) -> None:
    tools = f"{Path(command[0]).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": tools},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        errors="replace",
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="module")
def document(service: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openapi") / "openapi.json"
    path.write_text(service.get("/openapi.json").text)
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the generators."""
    directory: Path = tmp_path_factory.mktemp("generators")
    run(sys.executable, "-m", "venv", str(directory))
    run(str(directory / "bin" / "pip"), "install", "--quiet", *GENERATORS)
    return directory / "bin"


def test_the_linter_finds_nothing(document: Path, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    run("npm", "install", "--silent", "--prefix", str(tmp_path), REDOCLY)
    linter = tmp_path / "node_modules" / ".bin" / "redocly"
    done = subprocess.run(
        [str(linter), "lint", str(document), "--format=json"], capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)
    assert found["problems"] == []


def test_the_python_client_drives_a_service(
    service: httpx.Client, document: Path, environment: Path, tmp_path: Path
) -> None:
    generator = str(environment / "openapi-python-client")
    run(generator, "generate", "--path", str(document), "--meta", "none", "--fail-on-warning", cwd=tmp_path)
    cell = fresh_name("cell")
    task = create_task(service, labels={"cell": cell})
    set_model(service, task["task_id"])
    body = resources("c1")
    (tmp_path / "driver.py").write_text(f"RESOURCES = {body!r}\n{DRIVER}")
    url = str(service.base_url).rstrip("/")
    names = [fresh_name(), fresh_name()]
    python = str(environment / "python")
    run(python, "driver.py", url, OPERATOR_KEY, task["task_id"], cell, *names, cwd=tmp_path)


@pytest.mark.parametrize("language", LANGUAGES)
def test_openapi_generator_takes_the_document(
    document: Path, environment: Path, tmp_path: Path, language: str
) -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    generator = str(environment / "openapi-generator-cli")
    run(generator, "generate", "-i", str(document), "-g", language, "-o", str(tmp_path))
    assert len(list(tmp_path.rglob("*"))) > 40
