"""The devices of the documentation in real rounds: with the library, the standard library, and Java."""

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from fedcs_client import Api, endpoints
from tests.integration.cell import create_task, enrol_one, fresh_name, open_round
from tests.integration.rounds_setup import eventually, get_round
from tests.running_service import OPERATOR_KEY

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COMMANDS = {
    "device.py": [sys.executable],
    "stdlib_device.py": [sys.executable, "-I"],
    "Device.java": ["java"],
}


def test_the_device_with_the_library_is_short() -> None:
    assert len((EXAMPLES / "device.py").read_text().splitlines()) <= 25


@pytest.mark.parametrize("example", COMMANDS)
def test_it_reports_trains_and_uploads(service: httpx.Client, example: str) -> None:
    command = COMMANDS[example]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    labels, url = {"cell": fresh_name("cell")}, str(service.base_url).rstrip("/")
    client_id, key = enrol_one(service, labels)
    task = create_task(
        service, labels=labels, clock="wall", report_window_s=1e6, model_size_bytes=None, learning_rate=0.5
    )
    with Api(url, OPERATOR_KEY) as operator:
        model = save({"w": np.zeros(8, np.float32)})
        operator.send(endpoints.put_initial_model(task["task_id"], model))
    arguments = [str(EXAMPLES / example), url, client_id, key, "1"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as device:
        try:
            eventually(lambda: service.get(f"/clients/{client_id}/reports").json())
            round_id = open_round(service, task["task_id"])["round_id"]
            said, _ = device.communicate(timeout=120)
        finally:
            device.kill()
    assert device.returncode == 0, said.decode()
    assert get_round(service, round_id)["received"] == 1, said.decode()
    (slot,) = get_round(service, round_id)["schedule"]["slots"]
    assert slot["outcome"] == "received"
    assert load(model)["w"].any() == np.False_
