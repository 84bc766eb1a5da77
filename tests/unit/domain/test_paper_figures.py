"""Clients per round in the paper's setting, against the expected values in docs/protocol-map.md."""

import numpy as np
import pytest

from services.domain.radio import PAPER_CLIENTS, PAPER_MODEL_SIZE_BYTES, PAPER_REQUEST_FRACTION, Cell
from services.domain.resources import LocalWork, draw_candidates, estimate_times
from services.domain.selection import Candidates, make_policy

CELLS = 2000
MINUTES = (1, 3, 5, 10)
EXPECTED = {
    ("cifar10", "fedcs"): (1.05, 7.60, 12.14, 18.00),
    ("cifar10", "fedlim"): (0.94, 3.48, 5.07, 7.53),
    ("fashion-mnist", "fedcs"): (1.67, 9.37, 13.98, 19.89),
    ("fashion-mnist", "fedlim"): (1.31, 3.98, 5.71, 8.10),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dataset", "policy"), list(EXPECTED))
def test_clients_per_round(dataset: str, policy: str) -> None:
    rng = np.random.default_rng(2019)
    counts = np.zeros((CELLS, len(MINUTES)))
    for cell in range(CELLS):
        reports = Cell().draw_reports(PAPER_CLIENTS, rng)
        times = estimate_times(reports, LocalWork(PAPER_MODEL_SIZE_BYTES[dataset]))
        candidates = Candidates(times, reports).of(
            draw_candidates(PAPER_CLIENTS, PAPER_REQUEST_FRACTION, rng)
        )
        for column, minutes in enumerate(MINUTES):
            order = make_policy(policy, {}).select(candidates, minutes * 60 * 10**9, rng)
            counts[cell, column] = len(order)
    standard_errors = counts.std(axis=0, ddof=1) / np.sqrt(CELLS)
    deviations = (counts.mean(axis=0) - EXPECTED[dataset, policy]) / standard_errors
    assert abs(deviations).max() < 3, f"{counts.mean(axis=0)}: {deviations} standard errors off"
