"""Aggregation of 100 updates of 18.3 MB, compared with plain numpy on the same files.

python -m benchmarks.aggregation
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from benchmarks.timing import median_seconds
from services.aggregators import AGGREGATORS, make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.domain.clipping import ClipTerms
from services.learning.networks import build_network, parameters_of
from services.tensors.blocks import BLOCK_NUMBERS
from services.tensors.layout import data_bytes, locate_data

_UPDATES = 100
_RUNS = {"weighted": 5, "median": 3, "trimmed-mean": 3}
_TRIM = 20
"""Clients that the trimmed mean leaves out at each end."""


def main() -> None:
    """Print throughput and peak memory of every aggregator, and those of the baselines."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as directory:
        folder = Path(directory)
        model, updates = _write_updates(folder)
        size_bytes = model.stat().st_size
        total_mb = _UPDATES * size_bytes / 1e6
        table = Table("", "MB/s", "numpy", "ratio", "wanted", "peak memory, in models", "with 10 updates")
        table.title = f"{_UPDATES} updates of {size_bytes / 1e6:.1f} MB"
        for name in track(AGGREGATORS, "Aggregating"):
            contenders: dict[str, Callable[[], object]] = {"ours": partial(_ours, name, model, updates)}
            if name in _PEERS:
                contenders["numpy"] = partial(_PEERS[name], updates)
            seconds = median_seconds(contenders, _RUNS.get(name, 1))
            rates = {contender: total_mb / taken for contender, taken in seconds.items()}
            peer = ["", "", ""]
            if name in _PEERS:
                wanted = "≥ 0.56" if name == "weighted" else "≥ 0.5"
                peer = [f"{rates['numpy']:.0f}", f"{rates['ours'] / rates['numpy']:.2f}", wanted]
            peaks = [_peak_bytes(name, folder, updates[:count]) / size_bytes for count in (_UPDATES, 10)]
            table.add_row(name, f"{rates['ours']:.0f}", *peer, *(f"{peak:.2f}" for peak in peaks))
    Console(width=110).print(table)


def _write_updates(directory: Path) -> tuple[Path, list[ReceivedUpdate]]:
    network = build_network("paper-cnn-stated-size", (3, 32, 32), 10, seed=0)
    parameters = parameters_of(network)
    model = directory / "model.safetensors"
    save_file(parameters, model)
    updates = []
    for place in track(range(_UPDATES), "Writing updates"):
        path = directory / f"{place}.safetensors"
        save_file(
            {
                name: tensor + 0.01 * torch.randn(tensor.shape) if tensor.is_floating_point() else tensor + 50
                for name, tensor in parameters.items()
            },
            path,
        )
        updates.append(ReceivedUpdate(str(place), path, 100 + 9 * place))
    return model, updates


def _ours(name: str, model: Path, updates: Sequence[ReceivedUpdate], state: Path | None = None) -> None:
    """Aggregate; the next state is written to the file of the state."""
    aggregated = aggregate_updates(
        model,
        updates,
        make_aggregator(name, {}),
        state=load_file(state) if state is not None and state.exists() else None,
        clipping=ClipTerms(factor=2.0),
    )
    assert aggregated.model is not None
    assert not aggregated.record.outliers
    assert not any(influence.scales.clips for influence in aggregated.record.influences.values())
    if state is not None and aggregated.state is not None:
        save_arrays(dict(aggregated.state), state)


def _sum(updates: Sequence[ReceivedUpdate]) -> None:
    total: dict[str, np.ndarray] = load_file(updates[0].path)
    for given in updates[1:]:
        for name, tensor in load_file(given.path).items():
            total[name] += tensor


def _blocks(updates: Sequence[ReceivedUpdate]) -> Iterator[npt.NDArray[np.float32]]:
    """The numbers of all updates, as many at a time as our blocks have."""
    files = []
    for given in updates:
        layout, begin = locate_data(given.path)
        files.append(np.memmap(given.path, "<f4", "r", begin, (data_bytes(layout) // 4,)))
    for first in range(0, len(files[0]), BLOCK_NUMBERS):
        yield np.stack([file[first : first + BLOCK_NUMBERS] for file in files])


def _median(updates: Sequence[ReceivedUpdate]) -> None:
    for block in _blocks(updates):
        np.median(block, axis=0)


def _trimmed_mean(updates: Sequence[ReceivedUpdate]) -> None:
    for block in _blocks(updates):
        sorted_out = np.partition(block, (_TRIM, len(block) - _TRIM - 1), axis=0)
        sorted_out[_TRIM:-_TRIM].mean(axis=0)


_PEERS: Mapping[str, Callable[[Sequence[ReceivedUpdate]], None]] = {
    "weighted": _sum,
    "median": _median,
    "trimmed-mean": _trimmed_mean,
}


def _peak_bytes(name: str, folder: Path, updates: Sequence[ReceivedUpdate]) -> int:
    """The peak memory growth of a separate process during aggregation, with the state of a round before."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, folder, updates, sender))
    process.start()
    grown: int = receiver.recv()
    process.join()
    return grown


def _measure(name: str, folder: Path, updates: Sequence[ReceivedUpdate], sender: "Connection") -> None:
    torch.set_num_threads(1)
    model, state = folder / "model.safetensors", folder / f"{name}.state"
    _ours(name, model, updates[:1], state)  # do not count what is loaded at the first use
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = _status_bytes("VmRSS")
    _ours(name, model, updates, state)
    sender.send(_status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
