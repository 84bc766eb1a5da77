"""The device of the documentation in a real round."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import httpx
from safetensors.numpy import save

from client_sim import calls
from client_sim.api_client import Api
from tests.integration.cell import create_task, enrol_one, fresh_name, open_round
from tests.integration.rounds_setup import eventually, get_round
from tests.running_service import OPERATOR_KEY

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "device.py"


def initial_model() -> bytes:
    """The tensors of the device's own network."""
    spec = importlib.util.spec_from_file_location("device_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    tensors = device.network.state_dict()
    return save({name: tensor.numpy() for name, tensor in tensors.items()})


def test_it_reports_trains_and_uploads(service: httpx.Client) -> None:
    labels, url = {"cell": fresh_name("cell")}, str(service.base_url)
    client_id, key = enrol_one(service, labels)
    model = initial_model()
    with (
        Api(url, OPERATOR_KEY) as operator,
        subprocess.Popen([sys.executable, str(EXAMPLE), url, client_id, key]) as device,
    ):
        try:
            task = create_task(
                service,
                labels=labels,
                clock="wall",
                report_window_s=5,
                model_size_bytes=None,
                learning_rate=0.1,
            )
            operator.send(calls.put_initial_model(task["task_id"], model))
            eventually(lambda: service.get(f"/clients/{client_id}/reports").json(), timeout_s=60)
            round_id = open_round(service, task["task_id"])["round_id"]
            eventually(lambda: get_round(service, round_id)["received"] == 1, timeout_s=60)
            assert device.poll() is None, "it waits for the next round"
        finally:
            device.kill()
    assert int(service.get(f"/clients/{client_id}/reports").headers["x-total-count"]) < 10
