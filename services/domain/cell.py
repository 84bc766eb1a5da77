"""A cell of clients drawn at random, by default as in the paper's experiments (Section IV)."""

from dataclasses import dataclass, field

import numpy as np

from services.domain.radio import PerClient, Placement, RadioModel, place_clients
from services.domain.resources import ResourceReports

PAPER_CLIENTS = 1000
PAPER_REQUEST_FRACTION = 0.1
PAPER_MODEL_SIZE_BYTES = {"cifar10": 18_300_000, "fashion-mnist": 14_400_000}


@dataclass(frozen=True)
class Cell:
    """How the clients of a cell are distributed. The defaults are the paper preset."""

    radio: RadioModel = field(default_factory=RadioModel)
    placement: Placement = Placement.DISTANCE
    radius_m: float = 2000.0
    data_samples: tuple[int, int] = (100, 1000)
    compute_samples_per_s: tuple[float, float] = (10.0, 100.0)

    def draw_reports(self, clients: int, rng: np.random.Generator) -> ResourceReports:
        """Place the clients, and give each its radio, processor and data."""
        return self.reports_at(self.place(clients, rng), rng)

    def place(self, clients: int, rng: np.random.Generator) -> PerClient:
        """How far from the base station each client is, in metres."""
        return place_clients(clients, self.placement, rng, radius_m=self.radius_m)

    def reports_at(self, distances_m: PerClient, rng: np.random.Generator) -> ResourceReports:
        """Give clients at these distances their radio, processor and data."""
        clients = len(distances_m)
        losses_db = self.radio.path_loss_db(distances_m) + self.radio.shadow_fading(clients, rng)
        return ResourceReports(
            throughput_bps=self.radio.throughput_bps(self.radio.snr_db(losses_db)),
            compute_samples_per_s=rng.uniform(*self.compute_samples_per_s, clients),
            data_samples=rng.integers(*self.data_samples, clients, endpoint=True),
            resource_blocks=self.radio.resource_blocks,
        )
