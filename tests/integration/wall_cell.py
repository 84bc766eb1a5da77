"""Small scenarios for runs on the wall clock."""

from typing import Any

from client_sim.scenario import Scenario

PATIENCE_S = 300.0
QUICK: dict[str, Any] = {
    "data_samples": (10, 10),
    "compute_samples_per_s": (1000.0, 1000.0),
    "radius_m": 100.0,
}
"""A cell whose devices need next to no time."""


def scenario_of(
    clients: int,
    *,
    seed: int = 0,
    rounds: int | None = 1,
    uncertainty: float = 0.0,
    dropout: float = 0.0,
    model_bytes: int = 20_000,
    cell: dict[str, Any] | None = None,
    **task: Any,
) -> Scenario:
    terms: dict[str, Any] = {"request_fraction": 1.0, "local_epochs": 1, "seed": seed}
    return Scenario.model_validate(
        {
            "name": "wall",
            "seed": seed,
            "rounds": rounds,
            "cell": {"clients": clients, **(QUICK if cell is None else cell)},
            "behaviour": {"uncertainty": uncertainty, "dropout": dropout},
            "synthetic_update": {"model_bytes": model_bytes},
            "task": terms | task,
        }
    )
