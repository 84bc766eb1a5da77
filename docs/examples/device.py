"""A device that takes part in federated training, with a PyTorch network and data of its own.

python device.py URL CLIENT_ID KEY
"""

import sys
import time
from datetime import UTC, datetime

import torch
from safetensors.torch import load, save

from client_sim import calls
from client_sim.api_client import Api, ApiError
from services.contract.reports import ReportRequest
from services.contract.rounds import TrainAssignment

inputs = torch.randn(200, 8)  # here: points, and on which side of a plane they are
targets = (inputs.sum(dim=1) > 0).long()

# Tensors like this network's are what the operator gives the task as its initial model.
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def main(url: str, client: str, key: str) -> None:
    """Tell of the resources, then do what there is to do, for ever."""
    report = ReportRequest(client_id=client, throughput_bps=8e6, compute_samples_per_s=1e4, data_samples=200)
    with Api(url, key) as api:
        api.send(calls.post_report(report))
        while True:
            for assignment in api.send(calls.assignments(wait_s=60)).assignments:
                try:
                    if isinstance(assignment, TrainAssignment):
                        take_part(api, client, assignment)
                    else:
                        api.send(calls.post_report(report))
                except ApiError as refused:  # such as: too late
                    print(refused)
                    time.sleep(1)


def take_part(api: Api, client: str, assignment: TrainAssignment) -> None:
    """Fetch the model, train it as the assignment says, and upload it when the slot begins."""
    network.load_state_dict(load(api.send(calls.round_model(assignment.round_id))))
    optimizer = torch.optim.SGD(network.parameters(), assignment.learning_rate)
    for _ in range(assignment.local_epochs):
        for batch in torch.randperm(len(inputs)).split(assignment.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    passed_s = (datetime.now(UTC) - assignment.started_at).total_seconds()
    time.sleep(max(assignment.slot.window_start_s - passed_s, 0))
    api.send(calls.upload_update(assignment.round_id, client, save(network.state_dict()), len(inputs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
