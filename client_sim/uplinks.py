"""The uplinks of devices over time: replayed traces, or devices that move through the cell.

`draw_uplinks` makes the uplinks of a fleet, and `RoundUplinks` shows them to a round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from client_sim.scenario import Scenario
from client_sim.traces import NS_PER_S, Trace, load_traces
from services.contract.rounds import RoundSlot, ScheduleResponse
from services.domain.nanoseconds import to_ns
from services.domain.radio import PerClient, RadioModel
from services.domain.resources import REPORT_RESOURCE_BLOCKS

_WALK_STREAM = 0x77616C6B
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
        self._rng = np.random.default_rng([_WALK_STREAM, *seed])
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


MIN_THROUGHPUT_BPS = 100.0
"""The service rejects lower rates by default."""
_STREAM = 0x7472616365
"""The same for traces, offsets and starting points."""
_MINUTE_S = 60
_MINUTE_NS = _MINUTE_S * NS_PER_S
_SECONDS_NS = [second * NS_PER_S for second in range(_MINUTE_S)]
_CACHED_MINUTES = 4096


class Uplinks(Protocol):
    """The uplinks of all devices, with the resource blocks of their reports. Times are those of the run."""

    def throughput_bps(self, number: int, at_ns: int) -> float:
        """The throughput that a device measures: the mean of the last seconds."""
        ...

    def sent_ns(self, number: int, start_ns: int, bits: Fraction) -> int:
        """When a device that sends from ``start_ns`` on has sent these bits."""
        ...


@dataclass(frozen=True)
class TraceUplinks:
    """Each device replays a trace, from an offset of its own."""

    traces: list[Trace]
    """Of each device."""
    offsets_ns: list[int]
    window_ns: int

    def throughput_bps(self, number: int, at_ns: int) -> float:
        """The mean of the trace in the last seconds."""
        trace, time_ns = self.traces[number], at_ns + self.offsets_ns[number]
        return (trace.sum_until(time_ns) - trace.sum_until(time_ns - self.window_ns)) / self.window_ns

    def sent_ns(self, number: int, start_ns: int, bits: Fraction) -> int:
        """By the integral of the trace."""
        trace, offset_ns = self.traces[number], self.offsets_ns[number]
        amount = trace.sum_until(start_ns + offset_ns) + bits * NS_PER_S
        return max(round(trace.time_of(amount)) - offset_ns, start_ns)


class MobileUplinks:
    """Devices that move through the cell; the throughput of each second is that of its begin."""

    def __init__(self, walks: Sequence[Walk], radio: RadioModel, fading: ShadowFading, window_s: int) -> None:
        self._walks = walks
        self._radio = radio
        self._fading = fading
        self._window_s = window_s
        self._minute = lru_cache(_CACHED_MINUTES)(self._compute_minute)

    def throughput_bps(self, number: int, at_ns: int) -> float:
        """The mean of the last whole seconds."""
        now_s = at_ns // NS_PER_S
        return float(self._rates_bps(number, now_s - self._window_s, now_s).mean())

    def sent_ns(self, number: int, start_ns: int, bits: Fraction) -> int:
        """By the integral of the throughput, which is computed for a minute at a time."""
        number_of_minute = start_ns // _MINUTE_NS
        amount = bits * NS_PER_S + self._minute(number, number_of_minute).sum_until(start_ns % _MINUTE_NS)
        while amount > (total := self._minute(number, number_of_minute).total):
            amount -= total
            number_of_minute += 1
        end_ns = self._minute(number, number_of_minute).time_of(amount)
        return max(number_of_minute * _MINUTE_NS + round(end_ns), start_ns)

    def _compute_minute(self, number: int, number_of_minute: int) -> Trace:
        begin_s = _MINUTE_S * number_of_minute
        rates_bps = self._rates_bps(number, begin_s, begin_s + _MINUTE_S)
        return Trace(_SECONDS_NS, rates_bps.astype(np.int64).tolist(), _MINUTE_NS)

    def _rates_bps(self, number: int, begin_s: int, end_s: int) -> Floats:
        """The throughput in each second, in whole bit/s."""
        positions = self._walks[number].positions(np.arange(begin_s, end_s, dtype=np.float64))
        rates_bps = np.rint(throughput_bps(self._radio, self._fading, positions))
        return np.maximum(rates_bps, MIN_THROUGHPUT_BPS)


@dataclass(frozen=True)
class ScaledUplinks:
    """Uplinks that are ``time_scale`` times as fast, in time and in throughput."""

    uplinks: Uplinks
    time_scale: float

    def throughput_bps(self, number: int, at_ns: int) -> float:
        """The throughput in wall-clock time."""
        return self.time_scale * self.uplinks.throughput_bps(number, round(at_ns * self.time_scale))

    def sent_ns(self, number: int, start_ns: int, bits: Fraction) -> int:
        """The end in wall-clock time."""
        return round(self.uplinks.sent_ns(number, round(start_ns * self.time_scale), bits) / self.time_scale)


def draw_uplinks(scenario: Scenario, distances_m: PerClient, time_scale: float) -> Uplinks | None:
    """Draw the uplinks of devices that start at these distances; None: they keep to their reports."""
    rng = np.random.default_rng([_STREAM, scenario.seed])
    uplinks: Uplinks
    if scenario.traces is not None:
        traces = load_traces(scenario.traces.paths(), scenario.seed)
        numbers = rng.integers(len(traces), size=len(distances_m)).tolist()
        chosen = [traces[number] for number in numbers]
        shares = rng.random(len(chosen)).tolist()
        offsets_ns = [int(share * trace.period_ns) for share, trace in zip(shares, chosen, strict=True)]
        uplinks = TraceUplinks(chosen, offsets_ns, scenario.traces.report_mean_s * NS_PER_S)
    elif scenario.mobility is not None:
        mobility, radio = scenario.mobility, scenario.cell.cell().radio
        walking = Walking(scenario.cell.radius_m, mobility.speed_m_per_s, mobility.pause_s)
        angles = 2.0 * np.pi * rng.random(len(distances_m))
        starts = zip(
            (distances_m * np.cos(angles)).tolist(), (distances_m * np.sin(angles)).tolist(), strict=True
        )
        walks = [Walk(walking, start, [scenario.seed, number]) for number, start in enumerate(starts)]
        fading = ShadowFading(radio.shadow_fading_db, mobility.shadow_correlation_m, rng)
        uplinks = MobileUplinks(walks, radio, fading, mobility.report_mean_s)
    else:
        return None
    return uplinks if time_scale == 1.0 else ScaledUplinks(uplinks, time_scale)


class RoundUplinks:
    """The uplinks of the devices of a round, with the resource blocks of the round. Times are round times."""

    def __init__(
        self, uplinks: Uplinks, number: Callable[[str], int], schedule: ScheduleResponse, began_s: float
    ) -> None:
        """``began_s`` is the time of the run at which the round began."""
        self._uplinks = uplinks
        self._number = number
        self._began_ns = to_ns(began_s)
        self._blocks = {cell.cell_id: cell.resource_block_count for cell in schedule.cells}
        self._bits_per_block = 8 * schedule.upload_size_bytes * REPORT_RESOURCE_BLOCKS
        self._bits: dict[str, Fraction] = {}
        for slot in schedule.slots:
            self.add(slot)

    def add(self, slot: RoundSlot) -> None:
        """Add a device that is selected for the round."""
        self._bits[slot.client_id] = Fraction(self._bits_per_block, self._blocks[slot.cell_id])

    def throughput_bps(self, client_id: str, at_ns: int) -> float:
        """What the device would report now."""
        measured = self._uplinks.throughput_bps(self._number(client_id), self._began_ns + at_ns)
        return max(measured, MIN_THROUGHPUT_BPS)

    def sent_ns(self, client_id: str, start_ns: int, share: float = 1.0) -> int:
        """When the device has sent this share of its update, if it begins at ``start_ns``."""
        bits = self._bits[client_id] * Fraction(share)
        sent_ns = self._uplinks.sent_ns(self._number(client_id), self._began_ns + start_ns, bits)
        return sent_ns - self._began_ns
