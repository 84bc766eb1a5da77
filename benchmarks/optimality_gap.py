"""The gap between greedy selection and the exact optimum, over random instances.

python -m benchmarks.optimality_gap
"""

from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from services.domain.radio import PAPER_MODEL_SIZE_BYTES, Cell
from services.domain.resources import EstimatedTimes, LocalWork, estimate_times
from services.domain.selection.fedcs import greedy_order
from services.domain.selection.optimal import optimal_order

_INSTANCES = 2000

Shape = Callable[[np.random.Generator], tuple[EstimatedTimes, int]]


def _paper(dataset: str, minutes: int, candidates: int = 100) -> Shape:
    work = LocalWork(PAPER_MODEL_SIZE_BYTES[dataset])

    def draw(rng: np.random.Generator) -> tuple[EstimatedTimes, int]:
        return estimate_times(Cell().draw_reports(candidates, rng), work), minutes * 60 * 10**9

    return draw


def _cell(model_size_bytes: int, deadline_s: int) -> Shape:
    def draw(rng: np.random.Generator) -> tuple[EstimatedTimes, int]:
        return estimate_times(Cell().draw_reports(100, rng), LocalWork(model_size_bytes)), deadline_s * 10**9

    return draw


def _small_and_tight(rng: np.random.Generator) -> tuple[EstimatedTimes, int]:
    """Few clients with small integer times."""
    clients = int(rng.integers(2, 10))
    uploads_ns = rng.integers(1, 11, clients)
    times = EstimatedTimes(rng.integers(0, 21, clients), uploads_ns, uploads_ns)
    return times, int(rng.integers(5, 60))


_SHAPES: dict[str, Shape] = {
    "CIFAR-10, 1 min": _paper("cifar10", 1),
    "CIFAR-10, 3 min": _paper("cifar10", 3),
    "CIFAR-10, 5 min": _paper("cifar10", 5),
    "CIFAR-10, 10 min": _paper("cifar10", 10),
    "Fashion-MNIST, 3 min": _paper("fashion-mnist", 3),
    "1 MB model, 3 min": _cell(1_000_000, 180),
    "10 kB model, 1 min": _cell(10_000, 60),
    "small and tight": _small_and_tight,
}


def main() -> None:
    """Print how often and by how much greedy selection is below the optimum."""
    console = Console(width=110)
    table = Table(
        title=f"Greedy selection and the exact optimum, {_INSTANCES:,} instances each", title_justify="left"
    )
    for name in ("instances", "greedy", "optimum", "greedy ÷ optimum", "below in", "by at most"):
        table.add_column(name, justify="left" if name == "instances" else "right")
    for name, draw in track(_SHAPES.items(), "Solving", console=Console(stderr=True)):
        rng = np.random.default_rng(0)
        greedy, optimum = np.zeros(_INSTANCES), np.zeros(_INSTANCES)
        for instance in range(_INSTANCES):
            times, available_ns = draw(rng)
            greedy[instance] = len(greedy_order(times, available_ns))
            optimum[instance] = len(optimal_order(times, available_ns))
        gap = optimum - greedy
        table.add_row(
            name,
            f"{greedy.mean():.2f}",
            f"{optimum.mean():.2f}",
            f"{greedy.sum() / optimum.sum():.1%}",
            f"{(gap > 0).mean():.1%}",
            f"{gap.max():.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
