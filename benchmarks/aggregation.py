"""Aggregation of 100 updates of 18.3 MB, beside plain numpy that reads the same files and adds them up.

python -m benchmarks.aggregation
"""

import multiprocessing
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.numpy import load_file
from safetensors.torch import save_file

from benchmarks.timing import median_seconds
from services.domain.tasks import AggregationRule
from services.learning.aggregation import Contribution, aggregate
from services.learning.networks import build_network, parameters_of
from services.learning.rules import RULES

_UPDATES = 100
_RUNS = 5


def main() -> None:
    """Print throughput and peak memory, and the peers'."""
    torch.set_num_threads(1)
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as directory:
        model, contributions = _write_updates(Path(directory))
        seconds = median_seconds(
            {"ours": lambda: _ours(model, contributions), "numpy": lambda: _numpy(contributions)}, _RUNS
        )
        size_bytes = model.stat().st_size
        few, many = (_peak_bytes(model, contributions[:count]) for count in (10, _UPDATES))
    table = Table(
        "", "ours", "numpy", "ratio", "wanted", title=f"{_UPDATES} updates of {size_bytes / 1e6:.1f} MB"
    )
    rate = {name: _UPDATES * size_bytes / 1e6 / taken for name, taken in seconds.items()}
    ratio = rate["ours"] / rate["numpy"]
    table.add_row("MB/s", f"{rate['ours']:.0f}", f"{rate['numpy']:.0f}", f"{ratio:.2f}", "≥ 0.5")
    table.add_row("peak memory, in models", f"{many / size_bytes:.2f}", "", "", "< 5")
    table.add_row("the same with 10 updates", f"{few / size_bytes:.2f}", "", "", "")
    console.print(table)


def _write_updates(directory: Path) -> tuple[Path, list[Contribution]]:
    network = build_network("paper-cnn-stated-size", (3, 32, 32), 10, seed=0)
    parameters = parameters_of(network)
    model = directory / "model.safetensors"
    save_file(parameters, model)
    contributions = []
    for place in track(range(_UPDATES), "Writing updates"):
        path = directory / f"{place}.safetensors"
        save_file(
            {
                name: tensor + 0.01 * torch.randn(tensor.shape) if tensor.is_floating_point() else tensor + 50
                for name, tensor in parameters.items()
            },
            path,
        )
        contributions.append(Contribution(str(place), path, 100 + 9 * place))
    return model, contributions


def _ours(model: Path, contributions: Sequence[Contribution]) -> None:
    aggregated = aggregate(model, contributions, RULES[AggregationRule.WEIGHTED])
    assert aggregated.tensors is not None
    assert not aggregated.left_out


def _numpy(contributions: Sequence[Contribution]) -> None:
    total: dict[str, np.ndarray] = load_file(contributions[0].path)
    for given in contributions[1:]:
        for name, tensor in load_file(given.path).items():
            total[name] += tensor


def _peak_bytes(model: Path, contributions: Sequence[Contribution]) -> int:
    """By how much a process of its own grows at most while it aggregates."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(model, contributions, sender))
    process.start()
    grown: int = receiver.recv()
    process.join()
    return grown


def _measure(model: Path, contributions: Sequence[Contribution], sender: "Connection") -> None:
    torch.set_num_threads(1)
    _ours(model, contributions[:1])  # what is loaded at the first use is not counted
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    before = _status_bytes("VmRSS")
    _ours(model, contributions)
    sender.send(_status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name)]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
