"""The radio model of a cell: distance -> path loss -> SNR -> average uplink throughput.

Section IV-A of the paper: ITU-R M.2135-1 urban micro, non-line-of-sight, hexagonal layout, and the Shannon
capacity with a loss and an upper limit. All functions work on arrays with one value per client.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.domain.resources import REPORT_RESOURCE_BLOCKS, ResourceReports

PerClient: TypeAlias = npt.NDArray[np.float64]

RESOURCE_BLOCK_HZ = 180_000
_THERMAL_NOISE_DBM_PER_HZ = -174.0


class Placement(StrEnum):
    """How clients lie in the cell.

    ``DISTANCE`` (uniform in distance) is what meets the paper's published throughput; ``AREA``
    (uniform over the disc) is its wording taken literally.
    """

    DISTANCE = "distance"
    AREA = "area"


@dataclass(frozen=True)
class RadioModel:
    """The link budget of one cell. The defaults are the paper preset."""

    carrier_ghz: float = 2.5
    transmit_power_dbm: float = 20.0
    antenna_gains_dbi: float = 0.0
    resource_blocks: int = REPORT_RESOURCE_BLOCKS
    noise_figure_db: float = 1.0
    shadow_fading_db: float = 0.0
    snr_loss_db: float = 1.6
    max_bits_per_hz: float = 4.8
    reference_signal_dbm: float = 18.2
    """Per resource element: 46 dBm over the 600 subcarriers of a 10 MHz carrier."""

    @property
    def bandwidth_hz(self) -> int:
        """What the resource blocks cover."""
        return self.resource_blocks * RESOURCE_BLOCK_HZ

    @property
    def peak_throughput_bps(self) -> float:
        """Throughput at the best modulation."""
        return self.bandwidth_hz * self.max_bits_per_hz

    def path_loss_db(self, distances_m: PerClient) -> PerClient:
        """Mean loss over the distance, without fading."""
        losses_db: PerClient = 36.7 * np.log10(distances_m) + 22.7 + 26.0 * math.log10(self.carrier_ghz)
        return losses_db

    def shadow_fading(self, clients: int, rng: np.random.Generator) -> PerClient:
        """One log-normal fading value in dB per client."""
        return rng.normal(0.0, self.shadow_fading_db, clients)

    def snr_db(self, losses_db: PerClient) -> PerClient:
        """Signal-to-noise ratio after a path loss."""
        noise_dbm = _THERMAL_NOISE_DBM_PER_HZ + 10.0 * math.log10(self.bandwidth_hz) + self.noise_figure_db
        return self.transmit_power_dbm + self.antenna_gains_dbi - losses_db - noise_dbm

    def throughput_bps(self, snrs_db: PerClient) -> PerClient:
        """Average throughput at an SNR."""
        bits_per_hz = np.log2(1.0 + 10.0 ** ((snrs_db - self.snr_loss_db) / 10.0))
        return self.bandwidth_hz * np.minimum(bits_per_hz, self.max_bits_per_hz)

    def distance_m(self, throughputs_bps: PerClient) -> PerClient:
        """How far away a throughput is reached, without fading; at the ceiling, so far or nearer."""
        bits_per_hz = np.minimum(throughputs_bps / self.bandwidth_hz, self.max_bits_per_hz)
        snrs_db = 10.0 * np.log10(np.expm1(bits_per_hz * math.log(2.0))) + self.snr_loss_db
        losses_db = self.snr_db(np.zeros(1)) - snrs_db
        distances_m: PerClient = 10.0 ** ((losses_db - self.path_loss_db(np.ones(1))) / 36.7)
        return distances_m


def place_clients(
    clients: int,
    placement: Placement,
    rng: np.random.Generator,
    *,
    radius_m: float = 2000.0,
    min_distance_m: float = 10.0,
) -> PerClient:
    """Distances from the base station; the path loss is not valid closer than ``min_distance_m``."""
    draws = rng.random(clients)
    if placement is Placement.AREA:
        draws = np.sqrt(draws)
    return np.maximum(radius_m * draws, min_distance_m)


def throughput_from_sinr(radio: RadioModel, reported: int) -> float:
    """Throughput at an RS-SINR as terminals report it (3GPP TS 36.133): 1 is from -23 dB on, 2 from -22.5."""
    sinr_db = -23.5 + 0.5 * reported
    return float(radio.throughput_bps(np.array([sinr_db]))[0])


def throughput_from_rsrp(radio: RadioModel, reported: int) -> float:
    """Throughput at an RSRP as terminals report it (3GPP TS 36.133): 1 is from -140 dBm on, 2 from -139.

    What the base station's reference signal loses on its way down, the terminal's signal loses on its way up.
    """
    loss_db = radio.reference_signal_dbm - (-141.0 + reported)
    return float(radio.throughput_bps(radio.snr_db(np.array([loss_db])))[0])


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
