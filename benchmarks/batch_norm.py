"""Compare ways to aggregate the running statistics of batch normalisation.

The parameters are alvariants averaged. The statistics are averaged; or pooled, which adds the variance of the
means to the average variance; or kept from the initial model; or taken from the last client.

python -m benchmarks.batch_norm [--dataset cifar-10 --datasets-folder DIR] [--scheme non_iid] [--rounds 10]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from services.domain.tasks import PartitionScheme
from services.learning.datasets import DataSet, Purpose, derive_seed, draw_partition, load_dataset
from services.learning.evaluation import evaluate
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import build_network, parameters_of

State = Mapping[str, Tensor]
_CPU = torch.device("cpu")
_CLIENTS = 200


@click.command()
@click.option("--dataset", default="generated", show_default=True)
@click.option("--datasets-folder", type=click.Path(path_type=Path), default=Path())
@click.option("--scheme", type=click.Choice([scheme.value for scheme in PartitionScheme]), default="iid")
@click.option("--rounds", default=10, show_default=True)
@click.option("--selected", default=6, show_default=True, help="Clients in each round.")
@click.option("--learning-rate", default=0.25, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    *,
    dataset: str,
    datasets_folder: Path,
    scheme: str,
    rounds: int,
    selected: int,
    learning_rate: float,
    seed: int,
) -> None:
    """Print the accuracy after each round, for each method."""
    torch.set_num_threads(1)
    data = load_dataset(dataset, datasets_folder)
    network = build_network(
        "paper-cnn", data.input_shape, data.classes, seed=derive_seed(seed, Purpose.MODEL)
    )
    model: State = parameters_of(network)
    start = model
    rng = np.random.default_rng(seed)
    table = Table("round", "averaged", "pooled", "initial", "last client's", title=f"{dataset}, {scheme}")
    for number in track(range(1, rounds + 1), "Training"):
        states, counts = [], rng.integers(100, 501, size=selected)
        for place, partition in enumerate(rng.choice(_CLIENTS, selected, replace=False)):
            network.load_state_dict(dict(model))
            places = draw_partition(
                data.training.labels,
                data.classes,
                PartitionScheme(scheme),
                samples=int(counts[place]),
                task_seed=seed,
                partition=int(partition),
            )
            update_locally(
                network,
                data.prepare(data.training.inputs[places], _CPU),
                data.training.labels[places],
                Hyperparameters(5, 50, learning_rate * 0.99 ** (number - 1)),
                seed=derive_seed(seed, Purpose.TRAINING, number, int(partition)),
                after_batch=lambda _: None,
            )
            states.append({name: tensor.clone() for name, tensor in parameters_of(network).items()})
        variants = _combine(states, counts / counts.sum(), start)
        table.add_row(str(number), *(f"{_accuracy(network, data, state):.3f}" for state in variants.values()))
        model = variants["averaged"]
    Console(width=110).print(table)


def _combine(states: Sequence[State], shares: Sequence[float], start: State) -> dict[str, State]:
    def mean(values: Sequence[Tensor]) -> Tensor:
        exact = sum(
            float(share) * value.to(torch.float64) for share, value in zip(shares, values, strict=True)
        )
        assert isinstance(exact, Tensor)
        return exact

    averaged = {
        name: mean([state[name] for state in states]).to(tensor.dtype) for name, tensor in start.items()
    }
    pooled, initial, last = dict(averaged), dict(averaged), dict(averaged)
    for name in start:
        if name.endswith(("running_mean", "running_var")):
            initial[name], last[name] = start[name], states[-1][name]
        if name.endswith("running_var"):
            means = name.removesuffix("var") + "mean"
            raw = mean([state[name] + state[means] ** 2 for state in states])
            pooled[name] = (raw - averaged[means].to(torch.float64) ** 2).to(torch.float32)
    return {"averaged": averaged, "pooled": pooled, "initial": initial, "last": last}


def _accuracy(network: nn.Module, data: DataSet, state: State) -> float:
    network.load_state_dict(dict(state))
    score = evaluate(network, data, part=0, parts=1, device=_CPU, after_batch=lambda _: None)
    return score.correct / score.samples


if __name__ == "__main__":
    main()
