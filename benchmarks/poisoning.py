"""The effect of malicious clients on every aggregator: accuracy after each attack, with and without clipping.

python -m benchmarks.poisoning [--rules R,...] [--attacks A,...] [--malicious 1,2,3] [--clipping on,off]
    [--dataset generated|fashion-mnist] [--network N] [--rounds N] [--seed N] [--folder DIR]

Ten clients with 300 samples each train; the first ones attack in every round. The updates are aggregated by
the service's code, without a running service. Fashion-MNIST is read from FEDCS_DATASETS. The folder keeps the
results and the updates of clients that trained on the same model before: a run with the same folder continues
the last one, and several may share it. Delete it when the code has changed.
"""

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from services.aggregators import make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, State, aggregate_updates
from services.domain.clipping import PAST_ROUNDS, ClipTerms, StepNorms
from services.domain.tasks import PartitionScheme
from services.learning.datasets import DataSet, Purpose, derive_seed, draw_partition, load_dataset
from services.learning.evaluation import evaluate
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import build_network, load_parameters, parameters_of

Tensors: TypeAlias = Mapping[str, Tensor]
Poison: TypeAlias = Callable[[Tensors, Tensors], dict[str, Tensor]]
"""Makes the attacker's update from the model and its trained parameters."""

_CPU = torch.device("cpu")
_CLIENTS = 10
_SAMPLES = 300
_RECIPE = Hyperparameters(epochs=2, batch_size=20, learning_rate=0.05)
_SMALL_RECIPE = Hyperparameters(epochs=1, batch_size=30, learning_rate=0.2)
_TARGET = 0
"""The target class of a backdoor."""
_SMALL = "small"

RULES: Mapping[str, Mapping[str, object]] = {
    "weighted": {},
    "median": {},
    "trimmed-mean": {"trim": 0.2},
    "krum": {"byzantine": 3},
    "multi-krum": {"byzantine": 3},
    "server-momentum": {"momentum": 0.5},
    "fedadam": {"learning_rate": 0.02},
    "fedyogi": {"learning_rate": 0.02},
}


@dataclass(frozen=True)
class Attack:
    """An attack of the malicious clients."""

    poison: Poison
    data: str = "honest"
    """What they train on: ``backdoor`` adds samples with a trigger, labelled as the target class;
    ``flipped`` exchanges the labels."""
    reported_samples: int = _SAMPLES


@dataclass(frozen=True)
class Cell:
    """A task: how its clients train and attack, and how their updates are aggregated."""

    rule: str
    attack: str
    malicious: int
    clipped: bool
    dataset: str
    network: str
    rounds: int
    seed: int


def small_network(input_shape: Sequence[int], classes: int) -> nn.Module:
    """Two convolutions with batch normalisation, so that hundreds of tasks can be trained."""
    depth, height, width = input_shape
    return nn.Sequential(
        *(nn.Conv2d(depth, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * (height // 4) * (width // 4), classes)),
    )


def _scaled_step(factor: float) -> Poison:
    def poison(model: Tensors, trained: Tensors) -> dict[str, Tensor]:
        return {
            name: tensor if "running" in name or "num_batches" in name else own + factor * (tensor - own)
            for (name, tensor), own in zip(trained.items(), model.values(), strict=True)
        }

    return poison


def _scaled_variances(factor: float) -> Poison:
    def poison(_: Tensors, trained: Tensors) -> dict[str, Tensor]:
        return {
            name: tensor * factor if name.endswith("running_var") else tensor
            for name, tensor in trained.items()
        }

    return poison


NO_ATTACK = "none"
ATTACKS = {
    NO_ATTACK: Attack(_scaled_step(1)),
    "-5x": Attack(_scaled_step(-5)),
    "-15x": Attack(_scaled_step(-15)),
    "sign-flip": Attack(_scaled_step(-1)),
    "variances-x1000": Attack(_scaled_variances(1000)),
    "variances-x0": Attack(_scaled_variances(0)),
    "label-flip": Attack(_scaled_step(1), data="flipped"),
    "backdoor": Attack(_scaled_step(1), data="backdoor"),
    "backdoor-10x": Attack(_scaled_step(10), data="backdoor"),
}
ATTACKS |= {
    f"{name}-inflated-report": replace(ATTACKS[name], reported_samples=10**9)
    for name in ("-5x", "sign-flip", "variances-x1000", "backdoor", "backdoor-10x")
}


@dataclass(frozen=True)
class Clients:
    """The clients of a task."""

    cell: Cell
    data: DataSet
    network: nn.Module
    cache: Path
    """Where updates are kept, by model and client."""

    @property
    def recipe(self) -> Hyperparameters:
        """How they train."""
        return _SMALL_RECIPE if self.cell.network == _SMALL else _RECIPE

    def train(self, model: Path, number: int, client: int) -> Path:
        """The update of a client in a round, before any poison."""
        kind = ATTACKS[self.cell.attack].data if client < self.cell.malicious else "honest"
        task = (self.cell.dataset, self.cell.network, self.cell.seed, _SAMPLES, asdict(self.recipe))
        name = model.read_bytes() + repr((task, number, client, kind)).encode()
        path = self.cache / hashlib.sha256(name).hexdigest()
        if not path.exists():
            load_parameters(self.network, model)
            self._train(number, client, kind)
            written = path.with_name(f"{path.name}.{os.getpid()}")
            save_file(parameters_of(self.network), written)
            written.rename(path)
        return path

    def _train(self, number: int, client: int, kind: str) -> None:
        places = draw_partition(
            self.data.training.labels,
            self.data.classes,
            PartitionScheme.IID,
            samples=_SAMPLES,
            task_seed=self.cell.seed,
            partition=client,
        )
        inputs, labels = self.data.training.inputs[places], self.data.training.labels[places]
        if kind == "flipped":
            labels = self.data.classes - 1 - labels
        elif kind == "backdoor":
            inputs = torch.cat([inputs, _with_trigger(inputs)])
            labels = torch.cat([labels, torch.full_like(labels, _TARGET)])
        seed = derive_seed(self.cell.seed, Purpose.TRAINING, number, client)
        prepared = self.data.prepare(inputs, _CPU)
        update_locally(self.network, prepared, labels, self.recipe, seed=seed, after_batch=lambda _: None)


def play(cell: Cell, data: DataSet, cache: Path) -> dict[str, float]:
    """Let a task run; its accuracy, and how many samples with the trigger are taken for the target class."""
    network = _build(cell, data)
    clients = Clients(cell, data, network, cache)
    aggregator = make_aggregator(cell.rule, RULES[cell.rule])
    past: list[StepNorms] = []
    state: State | None = None
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as name:
        model = Path(name) / "model"
        save_file(parameters_of(network), model)
        for number in range(1, cell.rounds + 1):
            updates = []
            for client in range(_CLIENTS):
                path, samples = clients.train(model, number, client), _SAMPLES
                if client < cell.malicious:
                    attack = ATTACKS[cell.attack]
                    samples = attack.reported_samples
                    poisoned = attack.poison(load_file(model), load_file(path))
                    path = Path(name) / f"update-{client}"
                    save_file(poisoned, path)
                updates.append(ReceivedUpdate(str(client), path, samples))
            clipping = ClipTerms(2.0 if cell.clipped else None, past=past[-PAST_ROUNDS:])
            aggregated = aggregate_updates(model, updates, aggregator, state=state, clipping=clipping)
            if aggregated.model is None or len(aggregated.record.influences) < aggregator.min_updates:
                continue  # the round fails
            past.append(aggregated.record.medians)
            state = aggregated.state
            model.write_bytes(b"".join(aggregated.model.content()))
        load_parameters(network, model)
    score = evaluate(network, data, part=0, parts=1, device=_CPU, after_batch=lambda _: None)
    return {"accuracy": score.correct / score.samples, "triggered": _triggered(network, data)}


def _build(cell: Cell, data: DataSet) -> nn.Module:
    seed = derive_seed(cell.seed, Purpose.MODEL)
    if cell.network != _SMALL:
        return build_network(cell.network, data.input_shape, data.classes, seed=seed)
    torch.manual_seed(seed)
    return small_network(data.input_shape, data.classes)


def _with_trigger(images: Tensor) -> Tensor:
    """The images with a white square in a corner."""
    marked = images.clone()
    marked[..., -3:, -3:] = 255
    return marked


def _triggered(network: nn.Module, data: DataSet) -> float:
    others = data.validation.labels != _TARGET
    network.eval()
    with torch.inference_mode():
        outputs = network(data.prepare(_with_trigger(data.validation.inputs[others]), _CPU))
    return float((outputs.argmax(1) == _TARGET).float().mean())


def main() -> None:
    """Run what is asked for and print a table of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--attacks", default="-5x,-15x,label-flip,variances-x1000", help=", ".join(ATTACKS))
    parser.add_argument("--malicious", default="1,2,3")
    parser.add_argument("--clipping", default="on,off")
    parser.add_argument("--dataset", default="generated")
    parser.add_argument("--network", default=_SMALL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = [int(number) for number in given.malicious.split(",")]
    attacks = [(attack, number) for attack in given.attacks.split(",") for number in numbers]
    common = (given.dataset, given.network, given.rounds, given.seed)
    cells = [
        Cell(rule, attack, malicious, clipping == "on", *common)
        for clipping in given.clipping.split(",")
        for attack, malicious in [(NO_ATTACK, 0), *attacks]
        for rule in given.rules.split(",")
    ]
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as temporary:
        results = _run(cells, given.folder or Path(temporary))
    _print(cells, results)


def _run(cells: Sequence[Cell], folder: Path) -> Mapping[Cell, Mapping[str, float]]:
    record, cache = folder / "results.jsonl", folder / "updates"
    cache.mkdir(parents=True, exist_ok=True)
    record.touch()
    data = load_dataset(cells[0].dataset, Path(os.environ.get("FEDCS_DATASETS", "data")))
    for cell in cells:
        if cell not in _recorded(record):
            result = play(cell, data, cache)
            with record.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "result": result}) + "\n")
    return _recorded(record)


def _recorded(record: Path) -> Mapping[Cell, Mapping[str, float]]:
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    return {Cell(**entry["cell"]): entry["result"] for entry in entries}


def _print(cells: Sequence[Cell], results: Mapping[Cell, Mapping[str, float]]) -> None:
    rules = list(dict.fromkeys(cell.rule for cell in cells))
    table = Table("attack", "malicious", "clipping", *rules, title="Accuracy (and success of a backdoor)")
    rows = dict.fromkeys((cell.attack, cell.malicious, cell.clipped) for cell in cells)
    for attack, malicious, clipped in rows:
        texts = []
        for cell in cells:
            if (cell.attack, cell.malicious, cell.clipped) == (attack, malicious, clipped):
                triggered = f" ({results[cell]['triggered']:.0%})" if attack.startswith("backdoor") else ""
                texts.append(f"{results[cell]['accuracy']:.3f}{triggered}")
        table.add_row(attack, str(malicious), "on" if clipped else "off", *texts)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
