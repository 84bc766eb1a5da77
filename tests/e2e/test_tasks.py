"""A task from its start to its accuracy, through real Redis and real workers."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from tests.databases import KINDS, new_database
from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.e2e.reference_training import Learning, train_plainly
from tests.running_stack import Stack, running_stack
from tests.scaled_out import host, scaled_out_settings

LEARNING = Learning(seed=7, learning_rate=0.1, learning_rate_decay=0.99, local_epochs=4, batch_size=50)
TARGET = 0.8
SHORT = replace(LEARNING, local_epochs=1, batch_size=10)
OTHER_TERMS = replace(
    SHORT,
    gradient_clip_norm=1.0,
    local_momentum=0.5,
    weight_decay=0.01,
    proximal_mu=0.1,
    calibrated_loss=True,
)


@pytest.fixture(scope="module")
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


def complete_rounds(cell: HostedCell, rounds: int, learning: Learning = LEARNING) -> list[float]:
    """Play so many rounds; the accuracy after each."""
    task = cell.start_task(**asdict(learning), update_clip_factor=None)
    assert task["state"] == "ready", task
    accuracies = []
    for number in range(1, rounds + 1):
        over = cell.finish_round(cell.begin_round())
        assert (over["state"], over["received"]) == ("aggregated", len(cell.keys))
        metrics = cell.evaluated(number)
        assert metrics["elapsed_s"] == 3600.0 * number
        accuracies.append(metrics["accuracy"])
    return accuracies


def compare_with_plain_loop(
    cell: HostedCell, learning: Learning = LEARNING, most_difference: float = 1e-6
) -> None:
    """The model is that of federated averaging written down in one process."""
    devices = list(cell.keys)
    rounds = tuple(
        tuple((devices.index(item), cell.samples[item]) for item in order) for order in cell.uploads
    )
    plain = train_plainly(rounds, learning)
    ours = load(cell.model(len(rounds)))
    assert ours.keys() == plain.keys()
    difference = max(float((ours[name] - plain[name]).abs().max()) for name in plain)
    assert difference <= most_difference, difference
    counts = [name for name in plain if name.endswith("num_batches_tracked")]
    assert all(torch.equal(ours[name], plain[name]) for name in counts)


@pytest.mark.long
@pytest.mark.parametrize("stack", [*KINDS, "scaled out"], indirect=True)
def test_five_rounds_reach_the_accuracy_and_the_model_of_a_plain_loop(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [301, 250, 212, 150])
    accuracies = complete_rounds(cell, 5)
    assert accuracies[-1] >= TARGET, accuracies
    assert accuracies[0] < accuracies[-1]
    compare_with_plain_loop(cell)


@pytest.mark.parametrize("stack", ["postgresql"], indirect=True)
def test_two_rounds_give_the_model_of_a_plain_loop(stack: Stack) -> None:
    cell = hosted_cell(stack.service, [101, 50])
    complete_rounds(cell, 2)
    compare_with_plain_loop(cell)


@pytest.mark.parametrize("stack", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "learning",
    [
        replace(OTHER_TERMS, model="paper-cnn-gn"),
        pytest.param(replace(SHORT, model="resnet18-gn"), marks=pytest.mark.long),
    ],
    ids=lambda learning: str(learning.model),
)
def test_networks_with_group_normalisation_train_on_these_terms(stack: Stack, learning: Learning) -> None:
    cell = hosted_cell(stack.service, [25, 10])
    complete_rounds(cell, 1, learning)
    compare_with_plain_loop(cell, learning, most_difference=1e-5)
