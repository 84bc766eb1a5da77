"""A task from its start to its accuracy, through real Redis and real workers."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from tests.databases import KINDS, new_database
from tests.e2e.hosted_cell import hosted_cell
from tests.e2e.plain_loop import Learning, train_plainly
from tests.running_stack import Stack, running_stack
from tests.scaled_out import host, scaled_out_settings

LEARNING = Learning(seed=7, learning_rate=0.1, learning_rate_decay=0.99, local_epochs=4, batch_size=50)
ROUNDS = 5
TARGET = 0.8


@pytest.fixture(scope="module", params=[*KINDS, "scaled out"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    if request.param == "scaled out":
        yield from scaled_out_stack(request, directory)
        return
    postgres_url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    url = new_database(request.param, directory, postgres_url)
    with running_stack(directory, "--processes", "2", database_url=url) as running:
        yield running


def scaled_out_stack(request: pytest.FixtureRequest, directory: Path) -> Iterator[Stack]:
    request.getfixturevalue("s3")
    settings = scaled_out_settings(directory, request.getfixturevalue("postgres_url"))
    with (
        running_stack(directory, **settings) as running,
        running.worker("--processes", "1", **host(directory, "worker-1")),
        running.worker("--processes", "1", **host(directory, "worker-2")),
    ):
        yield running


def test_five_rounds_reach_the_accuracy_and_the_model_of_a_plain_loop(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [301, 250, 212, 150])
    task = cell.start_task(**asdict(LEARNING))
    assert task["state"] == "ready", task
    accuracies = []
    for number in range(1, ROUNDS + 1):
        over = cell.finish_round(cell.begin_round())
        assert (over["state"], over["received"]) == ("aggregated", 4)
        metrics = cell.evaluated(number)
        assert metrics["elapsed_s"] == 3600.0 * number
        accuracies.append(metrics["accuracy"])
    assert accuracies[-1] >= TARGET, accuracies
    assert accuracies[0] < accuracies[-1]
    devices = list(cell.keys)
    rounds = tuple(tuple((devices.index(one), cell.samples[one]) for one in order) for order in cell.uploads)
    plain = train_plainly(rounds, LEARNING)
    ours = load(cell.model(ROUNDS))
    assert ours.keys() == plain.keys()
    difference = max(float((ours[name] - plain[name]).abs().max()) for name in plain)
    assert difference <= 1e-6, difference
    assert torch.equal(ours["1.num_batches_tracked"], plain["1.num_batches_tracked"])
