"""Local update and evaluation compared with straightforward PyTorch loops, one thread each.

python -m benchmarks.local_update
"""

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import median_seconds
from services.learning.datasets import DataSet, Samples
from services.learning.evaluation import evaluate
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import build_network

_SAMPLES = 500
_BATCH = 50
_EPOCHS = 1
_RUNS = 5
_SHAPES = {"CIFAR-10": (3, 32, 32), "Fashion-MNIST": (1, 28, 28)}
_RATE = 0.05
_CPU = torch.device("cpu")


class _Images(Dataset[tuple[Tensor, int]]):
    """Images that are scaled one by one, as by a transform."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image = self._samples.inputs[place].to(torch.float32) / 255
        return (image - 0.5) / 0.25, int(self._samples.labels[place])


def main() -> None:
    """Print samples per second of each."""
    torch.set_num_threads(1)
    table = Table("", "straightforward", "in batches", "ours", "ours ÷ straightforward", title="samples/s")
    for name, shape in _SHAPES.items():
        data = _random_data(shape)
        for what, contenders in (("local update", _updates(data)), ("evaluation", _evaluations(data))):
            for contender in contenders.values():
                contender()  # warm-up
            seconds = median_seconds(contenders, _RUNS)
            rates = [_SAMPLES * _EPOCHS / taken for taken in seconds.values()]
            shown = [f"{rate:.0f}" for rate in rates]
            table.add_row(f"{what}, {name}", *shown, f"{rates[-1] / rates[0]:.2f}")
    Console(width=110).print(table)


def _random_data(shape: tuple[int, int, int]) -> DataSet:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (_SAMPLES, *shape), generator=rng, dtype=torch.uint8)
    samples = Samples(images, torch.randint(10, (_SAMPLES,), generator=rng))
    return DataSet(samples, samples, classes=10)


def _network(data: DataSet) -> nn.Module:
    return build_network("paper-cnn", data.input_shape, data.classes, seed=0)


def _updates(data: DataSet) -> dict[str, Callable[[], object]]:
    plain, batched, ours = _network(data), _network(data), _network(data)
    inputs, labels = data.prepare(data.training.inputs, _CPU), data.training.labels
    contiguous = inputs.contiguous()
    recipe = Hyperparameters(_EPOCHS, _BATCH, _RATE)
    return {
        "straightforward": lambda: _train(
            plain, DataLoader(_Images(data.training), batch_size=_BATCH, shuffle=True)
        ),
        "in batches": lambda: _train(
            batched,
            [
                (contiguous[places], labels[places])
                for places in torch.split(torch.randperm(_SAMPLES), _BATCH)
            ],
        ),
        "ours": lambda: update_locally(ours, inputs, labels, recipe, seed=0, after_batch=lambda _: None),
    }


def _train(
    network: nn.Module, batches: "DataLoader[tuple[Tensor, int]] | list[tuple[Tensor, Tensor]]"
) -> None:
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=_RATE)
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()


def _evaluations(data: DataSet) -> dict[str, Callable[[], object]]:
    plain, batched, ours = _network(data), _network(data), _network(data)
    contiguous = data.prepare(data.validation.inputs, _CPU).contiguous()
    return {
        "straightforward": lambda: _measure(plain, DataLoader(_Images(data.validation), batch_size=_BATCH)),
        "in batches": lambda: _measure(
            batched,
            list(
                zip(torch.split(contiguous, _BATCH), torch.split(data.validation.labels, _BATCH), strict=True)
            ),
        ),
        "ours": lambda: evaluate(ours, data, part=0, parts=1, device=_CPU, after_batch=lambda _: None),
    }


@torch.no_grad()
def _measure(
    network: nn.Module, batches: "DataLoader[tuple[Tensor, int]] | list[tuple[Tensor, Tensor]]"
) -> int:
    network.eval()
    return sum(int((network(inputs).argmax(1) == labels).sum()) for inputs, labels in batches)


if __name__ == "__main__":
    main()
