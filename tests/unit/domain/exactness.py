"""The fast selections beside the slow but obvious ones, on as many random instances as wanted.

python -m tests.unit.domain.exactness --greedy 10000 --optimal 3000

A sample is in the test suite.
"""

import argparse
from unittest.mock import patch

import numpy as np

from benchmarks.literal_greedy import literal_greedy
from services.domain.selection import fedcs
from services.domain.selection.optimal import optimal_order
from tests.unit.domain.instances import KAPPAS, max_clients, random_instance, round_ns


def main() -> None:
    """Compare, and end with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--greedy", type=int, default=10_000, help="instances for each κ")
    parser.add_argument("--optimal", type=int, default=3_000, help="instances for each κ")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    differing = 0
    for kappa in KAPPAS:
        rng = np.random.default_rng([given.seed, int(10 * kappa)])
        wrong_greedy = sum(not _greedy_is_literal(rng, kappa) for _ in range(given.greedy))
        wrong_optimal = sum(not _optimum_is_best(rng, kappa) for _ in range(given.optimal))
        differing += wrong_greedy + wrong_optimal
        print(
            f"κ = {kappa:g}: greedy differs from the algorithm box in {wrong_greedy} of {given.greedy}, "
            f"the optimum from brute force in {wrong_optimal} of {given.optimal}",
            flush=True,
        )
    raise SystemExit(1 if differing else 0)


def _greedy_is_literal(rng: np.random.Generator, kappa: float) -> bool:
    times, available_ns = random_instance(rng, max_clients=25, kappa=kappa)
    with patch.object(fedcs, "_FIRST_LOOK", rng.choice([1, 2, 5, 256])):
        order: list[int] = fedcs.greedy_order(times, available_ns).tolist()
    return order == literal_greedy(times, available_ns)


def _optimum_is_best(rng: np.random.Generator, kappa: float) -> bool:
    times, available_ns = random_instance(rng, max_clients=9, kappa=kappa)
    order: list[int] = optimal_order(times, available_ns).tolist()
    fits = not order or round_ns(times, order) < available_ns
    return fits and len(set(order)) == max_clients(times, available_ns)


if __name__ == "__main__":
    main()
