"""Bodies of ``POST /plans``."""

from typing import Any

import numpy as np

from services.contract.plans import PlanRequest
from services.domain.radio import Cell


def example() -> dict[str, Any]:
    """The example in the OpenAPI document."""
    schema = PlanRequest.model_json_schema()
    request: dict[str, Any] = schema["examples"][0]
    return request


def candidate(client_id: str = "c1", **changes: object) -> dict[str, Any]:
    report: dict[str, Any] = {
        "client_id": client_id,
        "throughput_bps": 1e6,
        "compute_samples_per_s": 50,
        "data_samples": 200,
    }
    return {name: value for name, value in (report | changes).items() if value is not ...}


def cell(clients: int, seed: int = 0, **terms: object) -> dict[str, Any]:
    """A round of a whole cell of the paper preset."""
    reports = Cell().draw_reports(clients, np.random.default_rng(seed))
    columns = (reports.throughput_bps, reports.compute_samples_per_s, reports.data_samples)
    return {
        "round_deadline_s": 180,
        "model_size_bytes": 18_300_000,
        **terms,
        "candidates": [
            candidate(f"c{number}", throughput_bps=bps, compute_samples_per_s=rate, data_samples=samples)
            for number, (bps, rate, samples) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ],
    }
