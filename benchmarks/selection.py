"""How fast clients are selected: beside the paper's literal loop, and beside a sort of as many values.

python -m benchmarks.selection
"""

from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.literal_greedy import literal_greedy
from benchmarks.timing import median_seconds
from services.domain.nanoseconds import NEVER_NS
from services.domain.radio import Cell
from services.domain.resources import EstimatedTimes, LocalWork, estimate_times
from services.domain.selection.fedcs import greedy_order
from services.domain.selection.optimal import optimal_order

_SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
_MAX_LITERAL_CLIENTS = 10_000
_ADMITTED_SHARE = 0.1
_MODELS = {"18.3 MB (the paper's)": 18_300_000, "1 MB": 1_000_000, "10 kB": 10_000}
_RUNS = 7


def main() -> None:
    """Print one table per model size, and the price of the exact optimum."""
    console = Console(width=110)
    for label, model_size_bytes in _MODELS.items():
        _print_growth(console, label, model_size_bytes)
    _print_optimal(console)


def _print_growth(console: Console, label: str, model_size_bytes: int) -> None:
    console.print(f"\n[bold]Greedy selection, cells of the paper preset, model of {label}, 10 % admitted")
    header = ("n", "admitted", "greedy ms", "× time of n/10", "÷ argsort", "literal ÷ greedy")
    console.print("".join(f"{name:>18}" for name in header))
    rng = np.random.default_rng(0)
    previous_s = None
    for clients in _SIZES:
        times = estimate_times(Cell().draw_reports(clients, rng), LocalWork(model_size_bytes))
        available_ns = _time_to_admit(times, round(_ADMITTED_SHARE * clients))
        seconds = median_seconds(
            {
                "greedy": partial(greedy_order, times, available_ns),
                "argsort": partial(np.argsort, times.upload_ns),
            },
            _RUNS,
        )
        row = [
            f"{clients:,}",
            f"{len(greedy_order(times, available_ns)):,}",
            f"{seconds['greedy'] * 1e3:.2f}",
            "" if previous_s is None else f"{seconds['greedy'] / previous_s:.1f}",
            f"{seconds['greedy'] / seconds['argsort']:.1f}",
            _literal_ratio(times, available_ns, seconds["greedy"]),
        ]
        console.print("".join(f"{cell:>18}" for cell in row))
        previous_s = seconds["greedy"]


def _time_to_admit(times: EstimatedTimes, clients: int) -> int:
    """A deadline with which greedy admits about so many."""
    low, high = 0, NEVER_NS
    while high - low > high // 10_000 + 1:
        middle = (low + high) // 2
        if len(greedy_order(times, middle)) < clients:
            low = middle
        else:
            high = middle
    return high


def _literal_ratio(times: EstimatedTimes, available_ns: int, greedy_s: float) -> str:
    if len(times) > _MAX_LITERAL_CLIENTS:
        return "(too slow)"
    seconds = median_seconds({"literal": lambda: literal_greedy(times, available_ns)}, runs=1)
    return f"{seconds['literal'] / greedy_s:,.0f}"


def _print_optimal(console: Console) -> None:
    table = Table(
        title="The optimum beside greed, 200 cells of 100",
        title_justify="left",
    )
    for name in ("round", "greedy ms", "optimal ms", "optimal ÷ greedy"):
        table.add_column(name, justify="right")
    rng = np.random.default_rng(1)
    for minutes in (1, 3, 5, 10):
        ratios, greedy_ms, optimal_ms = [], [], []
        for _ in range(200):
            times = estimate_times(Cell().draw_reports(100, rng), LocalWork(18_300_000))
            available_ns = minutes * 60 * 10**9
            seconds = median_seconds(
                {
                    "greedy": partial(greedy_order, times, available_ns),
                    "optimal": partial(optimal_order, times, available_ns),
                },
                runs=3,
            )
            ratios.append(seconds["optimal"] / seconds["greedy"])
            greedy_ms.append(seconds["greedy"] * 1e3)
            optimal_ms.append(seconds["optimal"] * 1e3)
        table.add_row(
            f"{minutes} min",
            f"{np.median(greedy_ms):.3f}",
            f"{np.median(optimal_ms):.3f}",
            f"{np.median(ratios):.1f} (at most {max(ratios):.1f})",
        )
    console.print()
    console.print(table)


if __name__ == "__main__":
    main()
