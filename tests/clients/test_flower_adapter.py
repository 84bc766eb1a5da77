"""A Flower client takes part in rounds, unchanged, in an environment of its own."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.integration.cell import create_task, enrol_one, fresh_name, open_round
from tests.integration.rounds_setup import eventually, get_round

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FLOWER = "flwr==1.41.*"
FLOWER_CLIENT = '''
import numpy as np
from flwr.client import NumPyClient


class PlaneClient(NumPyClient):
    """Written for Flower: it knows nothing of this service."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.inputs = rng.normal(size=(100, 4))
        self.labels = self.inputs.sum(axis=1) > 0
        self.parameters = [np.zeros(4, np.float32), np.zeros(1, np.float32)]

    def get_parameters(self, config):
        return self.parameters

    def fit(self, parameters, config):
        weights, bias = (array.astype(np.float64) for array in parameters)
        for _ in range(config.get("local_epochs", 1)):
            wrong = (self.inputs @ weights + bias > 0).astype(float) - self.labels
            weights -= 0.1 * (wrong @ self.inputs) / len(self.inputs)
            bias -= 0.1 * wrong.mean(keepdims=True)
        return [weights.astype(np.float32), bias.astype(np.float32)], len(self.inputs), {}

    def evaluate(self, parameters, config):
        weights, bias = parameters
        right = ((self.inputs @ weights + bias > 0) == self.labels).mean()
        return 1.0 - float(right), len(self.inputs), {"accuracy": float(right)}
'''
DRIVER = """
import sys
from fedcs_client import Resources
from fedcs_client.flower import flower_device, flower_model
from plane_client import PlaneClient

url, client_id, key, model_path = sys.argv[1:]
client = PlaneClient()
open(model_path, "wb").write(flower_model(client))
report = lambda: Resources(throughput_bps=8e6, compute_samples_per_s=1e4, data_samples=100)
device = flower_device(url, client_id, key, client, report=report, evaluates=True)
assert device.run(rounds=3) == 3
"""


def _is_received(service: httpx.Client, round_id: str) -> bool:
    return bool(get_round(service, round_id)["received"] == 1)


def test_a_numpy_client_takes_part_in_three_rounds(service: httpx.Client, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = str(environment / "bin" / "pip")
    if subprocess.run([pip, "install", "--quiet", FLOWER, str(ROOT)], check=False).returncode:
        pytest.skip(f"{FLOWER} cannot be installed here")
    (tmp_path / "plane_client.py").write_text(FLOWER_CLIENT)
    (tmp_path / "driver.py").write_text(DRIVER)
    labels, url = {"cell": fresh_name("cell")}, str(service.base_url).rstrip("/")
    client_id, key = enrol_one(service, labels)
    # No worker aggregates here: each round is of a task of its own.
    model = tmp_path / "model.safetensors"
    command = [str(environment / "bin" / "python"), "driver.py", url, client_id, key, str(model)]
    with subprocess.Popen(command, cwd=tmp_path) as device:
        try:
            eventually(lambda: service.get(f"/clients/{client_id}/reports").json())
            for _ in range(3):
                terms = {"labels": labels, "clock": "wall", "model_size_bytes": None}
                task_id = create_task(service, **terms)["task_id"]
                put = service.put(f"/tasks/{task_id}/models/0", content=model.read_bytes())
                assert put.status_code == 200, put.text
                round_id = open_round(service, task_id)["round_id"]
                eventually(partial(_is_received, service, round_id))
                (version,) = service.get(f"/tasks/{task_id}/models").json()
                assert version["device_accuracy"] is not None
            assert device.wait(timeout=120) == 0
        finally:
            device.kill()
