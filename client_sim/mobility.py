"""Devices that move through the cell: random waypoints, and shadow fading that is correlated in space."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.domain.radio import RadioModel

_STREAM = 0x77616C6B
"""Separates these random numbers from others of the same seed."""
_WAVES = 64
_MIN_DISTANCE_M = 10.0
"""The path loss is not valid closer to the base station."""

Floats = npt.NDArray[np.float64]


class ShadowFading:
    """A map of shadow fading: devices at the same place have the same fading.

    The correlation of two places falls exponentially with their distance (Gudmundson's model). The map is a
    sum of plane waves whose lengths and directions are drawn from the spectrum of that correlation.
    """

    def __init__(self, deviation_db: float, correlation_m: float, rng: np.random.Generator) -> None:
        shares, directions, self._phases = rng.random((3, _WAVES))
        lengths = np.sqrt((1.0 - shares) ** -2 - 1.0) / correlation_m
        angles = 2.0 * np.pi * directions
        self._waves = lengths * np.array([np.cos(angles), np.sin(angles)])
        self._phases *= 2.0 * np.pi
        self._factor = deviation_db * np.sqrt(2.0 / _WAVES)

    def at(self, positions: Floats) -> Floats:
        """The fading in dB at each position (x, y)."""
        fading: Floats = self._factor * np.cos(positions @ self._waves + self._phases).sum(axis=1)
        return fading


@dataclass(frozen=True)
class Walking:
    """How devices move: straight to a random point of the cell, a pause, then to the next."""

    radius_m: float
    speed_m_per_s: tuple[float, float]
    pause_s: tuple[float, float]


class Walk:
    """The way of one device. It is extended as far as it is asked for; the seed determines it."""

    def __init__(self, walking: Walking, start: tuple[float, float], seed: Sequence[int]) -> None:
        self._walking = walking
        self._rng = np.random.default_rng([_STREAM, *seed])
        self._times_s, self._x, self._y = [0.0], [start[0]], [start[1]]

    def positions(self, times_s: Floats) -> Floats:
        """The position (x, y) at each time; before time 0 the device stands at its start."""
        while self._times_s[-1] <= times_s[-1]:
            self._extend()
        return np.column_stack(
            [np.interp(times_s, self._times_s, self._x), np.interp(times_s, self._times_s, self._y)]
        )

    def _extend(self) -> None:
        walking, rng = self._walking, self._rng
        distance_m, angle = walking.radius_m * np.sqrt(rng.random()), 2.0 * np.pi * rng.random()
        x, y = float(distance_m * np.cos(angle)), float(distance_m * np.sin(angle))
        way_m = float(np.hypot(x - self._x[-1], y - self._y[-1]))
        arrived_s = self._times_s[-1] + way_m / rng.uniform(*walking.speed_m_per_s)
        self._times_s += [arrived_s, arrived_s + rng.uniform(*walking.pause_s)]
        self._x += [x, x]
        self._y += [y, y]


def throughput_bps(radio: RadioModel, fading: ShadowFading, positions: Floats) -> Floats:
    """The throughput at each position; the base station is at (0, 0)."""
    distances_m = np.maximum(np.hypot(positions[:, 0], positions[:, 1]), _MIN_DISTANCE_M)
    losses_db = radio.path_loss_db(distances_m) + fading.at(positions)
    return radio.throughput_bps(radio.snr_db(losses_db))
