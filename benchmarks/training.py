"""Training: samples per second through the whole service, beside bare PyTorch, Flower and pfl.

python -m benchmarks.training
"""

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import BARE, BARE_HOSTING, FLOWER, PFL, Contender, child, peer_python
from benchmarks.hosted_rounds import hosted_rounds
from benchmarks.peers import loops
from benchmarks.peers.images import CLIENTS
from benchmarks.peers.turns import Times, Turn
from services.learning.networks import build_network

_MINIMAL = Turn("optimised", samples=1, epochs=1)
_MINIMAL_WITH_EVALUATION = Turn("optimised", samples=1, epochs=1, evaluates=True)
_SMALL = Turn("optimised", samples=50, epochs=1)
_FULL = Turn("optimised", samples=500, epochs=5)
_OURS = "ours"

Lane = tuple[str, str]
"""A framework and a training loop."""
Row = tuple[str, str, str, str, str, str]


@dataclass(frozen=True)
class Entry:
    """A framework with its training loop, and the ratio that ours should reach."""

    label: str
    contender: str
    loop: str
    wanted: float


_ENTRIES = (
    Entry("bare PyTorch, two processes", "bare", "optimised", 0.95),
    Entry("Flower, straightforward loop", "Flower", "straightforward", 1.15),
    Entry("pfl, its own loop", "pfl", "straightforward", 1.15),
    Entry("Flower, our loop", "Flower", "optimised", 0.95),
    Entry("pfl, our loop", "pfl", "optimised", 0.95),
)


@click.command()
@click.option("--runs", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="Tiny rounds, as a smoke test; the figures mean nothing.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Include Flower and pfl.")
@click.option(
    "--peers-dir",
    default=Path(tempfile.gettempdir()) / "fedcs-benchmark-peers",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Virtual environments of Flower and pfl; created if missing.",
)
def main(*, runs: int, quick: bool, peers: bool, peers_dir: Path) -> None:
    """Measure, and print the ratios."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stop the child processes too
    _check_network()
    console = Console()
    turn = _SMALL if quick else _FULL
    with ExitStack() as stack:
        starts: dict[str, AbstractContextManager[Contender]] = {
            _OURS: hosted_rounds(),
            "bare": child(sys.executable, BARE),
            "bare HTTP": child(sys.executable, BARE_HOSTING),
        }
        if peers:
            with console.status("Creating virtual environments"):
                starts["Flower"] = child(peer_python("flower", peers_dir), FLOWER)
                starts["pfl"] = child(peer_python("pfl", peers_dir), PFL)
        entries = [entry for entry in _ENTRIES if entry.contender in starts]
        contenders, startup_s = _start_all(console, starts, stack)
        for name, loop in _lanes(entries):
            contenders[name].do_round(Turn(loop, _SMALL.samples, _SMALL.epochs))
        full = _interleave(console, contenders, _lanes(entries), turn, runs)
        without_bare = [(name, "optimised") for name in starts if name != "bare"]
        overhead = _interleave(console, contenders, without_bare, _MINIMAL, runs)
        # Flower's default: every client evaluates the new model.
        by_default = [lane for lane in without_bare if lane[0] in {_OURS, "Flower"}]
        evaluated = _interleave(console, contenders, by_default, _MINIMAL_WITH_EVALUATION, runs)
    table = _new_table(f"Training: {CLIENTS} clients × {turn.samples} samples × {turn.epochs} epochs")
    for row in (
        *_throughput_rows(entries, full, turn),
        *_overhead_rows("s per round, minimal training", overhead),
        *_overhead_rows("s per round, minimal training and evaluation", evaluated),
        *_startup_rows(startup_s),
        *_other_rows(full[_OURS, "optimised"]),
    ):
        table.add_row(*row)
    console.print(table)


def _check_network() -> None:
    """Check that the baselines' copy of the network equals ours."""
    ours = build_network("paper-cnn", (3, 32, 32), 10, seed=0)
    copy = loops.paper_cnn()
    assert str(ours) == str(copy), "the layers differ"
    shapes, copied = (
        {name: tensor.shape for name, tensor in network.state_dict().items()} for network in (ours, copy)
    )
    assert shapes == copied, "the parameters differ"


def _start_all(
    console: Console, starts: Mapping[str, AbstractContextManager[Contender]], stack: ExitStack
) -> tuple[dict[str, Contender], dict[str, float]]:
    """Start the frameworks; return them and the time of start and first round."""
    contenders, startup_s = {}, {}
    for name, start in starts.items():
        console.print(f"starting {name}")
        began = time.perf_counter()
        contenders[name] = stack.enter_context(start)
        first = contenders[name].do_round(_MINIMAL)
        startup_s[name] = time.perf_counter() - began - first.evaluation_s
    return contenders, startup_s


def _lanes(entries: Sequence[Entry]) -> list[Lane]:
    return [(_OURS, "optimised"), *((entry.contender, entry.loop) for entry in entries)]


def _interleave(
    console: Console, contenders: Mapping[str, Contender], lanes: Sequence[Lane], turn: Turn, runs: int
) -> dict[Lane, list[Times]]:
    """Run the rounds of all lanes alternately; each run starts with another lane."""
    times: dict[Lane, list[Times]] = {lane: [] for lane in lanes}
    for run in range(runs):
        first = run % len(lanes)
        for name, loop in (*lanes[first:], *lanes[:first]):
            took = contenders[name].do_round(replace(turn, loop=loop))
            times[name, loop].append(took)
            console.print(
                f"run {run + 1} of {runs}, {turn.samples} samples: {name}, {loop}: training "
                f"{took.training_s:.2f} s, round {took.round_s:.2f} s"
            )
    return times


def _new_table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("measure", "ours", "baseline", "ratio", "target", "met"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    return table


def _throughput_rows(
    entries: Sequence[Entry], times: Mapping[Lane, Sequence[Times]], turn: Turn
) -> Iterator[Row]:
    trained = CLIENTS * turn.samples * turn.epochs
    ours_s = [run.training_s for run in times[_OURS, "optimised"]]
    for entry in entries:
        baseline_s = [run.training_s for run in times[entry.contender, entry.loop]]
        ratio = _median_ratio(baseline_s, ours_s)
        yield (
            f"samples/s, {entry.label}",
            f"{trained / median(ours_s):.0f}",
            f"{trained / median(baseline_s):.0f}",
            f"{ratio:.2f}",
            f"≥ {entry.wanted}",
            _holds(ratio >= entry.wanted),
        )


def _overhead_rows(label: str, times: Mapping[Lane, Sequence[Times]]) -> Iterator[Row]:
    ours_s = [run.round_s for run in times[_OURS, "optimised"]]
    for (name, _), runs in times.items():
        if name != _OURS:
            baseline_s = [run.round_s for run in runs]
            ratio = _median_ratio(ours_s, baseline_s)
            wanted = ("≤ 0.5", _holds(ratio <= 0.5)) if name == "Flower" else ("", "")
            yield (
                f"{label}, {name}",
                f"{median(ours_s):.2f}",
                f"{median(baseline_s):.2f}",
                f"{ratio:.2f}",
                *wanted,
            )


def _startup_rows(startup_s: Mapping[str, float]) -> Iterator[Row]:
    for name, seconds in startup_s.items():
        if name != _OURS:
            ratio = startup_s[_OURS] / seconds
            label = f"s to start and run the first round, {name}"
            yield (label, f"{startup_s[_OURS]:.1f}", f"{seconds:.1f}", f"{ratio:.2f}", "", "")


def _other_rows(times: Sequence[Times]) -> Iterator[Row]:
    """The overhead of a round, and the time of evaluation."""
    share = median((run.round_s - run.training_s) / run.training_s for run in times)
    rest_s = median(run.round_s - run.training_s for run in times)
    yield (
        "s of overhead per round (ratio: ÷ training)",
        f"{rest_s:.2f}",
        "",
        f"{share:.2f}",
        "≤ 0.10",
        _holds(share <= 0.10),
    )
    evaluation_s = median(run.evaluation_s for run in times)
    yield ("s to evaluate a model on 10,000 samples, after the round", f"{evaluation_s:.2f}", "", "", "", "")


def _median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios of simultaneous runs."""
    return median(ours / other for ours, other in zip(numerators, denominators, strict=True))


def _holds(holds: bool) -> str:  # noqa: FBT001
    return "yes" if holds else "no"


if __name__ == "__main__":
    main()
