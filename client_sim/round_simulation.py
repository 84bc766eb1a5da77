"""Simulate a scheduled round: actual update and upload times, and dropouts.

Section V-A of the paper: throughput and computing speed are drawn around the reported values. Uploads keep
the scheduled order of their cell; each starts when its update is done and the cell's channel is free.

With traces or movement, the throughput is that of the uplink at the time of the upload. A device that leaves
stops its update and its upload. If it is not back when its turn comes, it uploads after the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from client_sim.scenario import Behaviour
from client_sim.uplinks import RoundUplinks
from services.contract.rounds import RoundSlot, ScheduleResponse
from services.domain.nanoseconds import round_to_ns, to_ns, to_seconds
from services.domain.resources import REPORT_RESOURCE_BLOCKS

_STREAM = 0x706C6179
"""Separates these random numbers from those of the service for the same seed and round."""

Factors: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Absence:
    """When a device leaves and when it is back, in round time."""

    left_ns: int
    back_ns: int


@dataclass(frozen=True)
class SimulatedSlot:
    """What a selected device does in its slot. ``upload_start_s`` and ``upload_end_s`` are in round time."""

    client_id: str
    update_s: float
    """With the time for which the device was away meanwhile."""
    upload_s: float
    upload_start_s: float | None
    """None: the device dropped out."""
    upload_end_s: float | None
    late: bool
    """Whether the upload ends after the upload deadline."""
    absence: Absence | None = None

    @property
    def dropped(self) -> bool:
        """Whether the device never uploads."""
        return self.upload_end_s is None


@dataclass(frozen=True)
class _Device:
    slot: RoundSlot
    update_ns: int
    upload_ns: int
    """With the drawn throughput."""
    dropped: bool
    absence: Absence | None


def round_rng(seed: int, round_number: int) -> np.random.Generator:
    """The random generator of a round; it does not depend on earlier rounds."""
    return np.random.default_rng([_STREAM, seed, round_number])


def simulate_round(
    schedule: ScheduleResponse,
    behaviour: Behaviour,
    rng: np.random.Generator,
    uplinks: RoundUplinks | None = None,
) -> list[SimulatedSlot]:
    """Simulate each selected device, in the planned order."""
    devices = _draw_devices(schedule, behaviour, rng)
    uploads_ns: dict[str, tuple[int, int]] = {}
    for cell in schedule.cells:
        begin_ns = _begin_ns(schedule, cell.distribution_s)
        present = [device for device in devices if device.slot.cell_id == cell.cell_id and not device.dropped]
        uploads_ns |= _simulate_channel(present, begin_ns, uplinks)
    deadline_ns = _upload_deadline_ns(schedule)
    simulated = []
    for device in devices:
        start_ns, end_ns = uploads_ns.get(device.slot.client_id, (0, device.upload_ns))
        simulated.append(
            SimulatedSlot(
                client_id=device.slot.client_id,
                update_s=to_seconds(device.update_ns),
                upload_s=to_seconds(end_ns - start_ns),
                upload_start_s=None if device.dropped else to_seconds(start_ns),
                upload_end_s=None if device.dropped else to_seconds(end_ns),
                late=not device.dropped and deadline_ns is not None and end_ns >= deadline_ns,
                absence=device.absence,
            )
        )
    return simulated


def simulate_replacement(slot: RoundSlot, behaviour: Behaviour, rng: np.random.Generator) -> SimulatedSlot:
    """Simulate a device that is selected during the round; an upload end, if it does not drop out."""
    has_dropped = bool(rng.random() < behaviour.dropout)
    speeds = draw_factors(behaviour.uncertainty, 2, rng)
    update_s, upload_s = slot.reported_update_s / speeds[0], slot.reported_upload_s / speeds[1]
    end_s = None if has_dropped else slot.window_start_s + upload_s
    start_s = None if has_dropped else slot.window_start_s
    return SimulatedSlot(slot.client_id, update_s, upload_s, start_s, end_s, late=False)


def throughput_of(simulated: SimulatedSlot, upload_size_bytes: int, resource_blocks: int) -> float:
    """What the device's uplink gives in its upload, for as many blocks as reports refer to."""
    return 8 * upload_size_bytes / simulated.upload_s * REPORT_RESOURCE_BLOCKS / resource_blocks


def _draw_devices(
    schedule: ScheduleResponse, behaviour: Behaviour, rng: np.random.Generator
) -> list[_Device]:
    slots = schedule.slots
    drops = rng.random(len(slots)) < behaviour.dropout
    speeds = draw_factors(behaviour.uncertainty, 2 * len(slots), rng).reshape(2, len(slots))
    updates_ns = round_to_ns(np.array([slot.reported_update_s for slot in slots]) / speeds[0]).tolist()
    uploads_ns = round_to_ns(np.array([slot.reported_upload_s for slot in slots]) / speeds[1]).tolist()
    leaves = rng.random(len(slots)) < behaviour.leaving
    moments = rng.random(len(slots)).tolist()
    away_ns = round_to_ns(rng.uniform(*behaviour.away_s, len(slots))).tolist()
    distributions_s = {cell.cell_id: cell.distribution_s for cell in schedule.cells}
    devices = []
    for number, slot in enumerate(slots):
        update_ns, absence = updates_ns[number], None
        if leaves[number]:
            begin_ns = _begin_ns(schedule, distributions_s[slot.cell_id])
            left_ns = begin_ns + round(moments[number] * (to_ns(slot.window_end_s) - begin_ns))
            absence = Absence(left_ns, left_ns + away_ns[number])
            if left_ns < begin_ns + update_ns:
                update_ns += away_ns[number]
        devices.append(_Device(slot, update_ns, uploads_ns[number], bool(drops[number]), absence))
    return devices


def _simulate_channel(
    devices: Sequence[_Device], begin_ns: int, uplinks: RoundUplinks | None
) -> dict[str, tuple[int, int]]:
    """The start and the end of each upload in a cell, whose channel is free from ``begin_ns`` on."""
    uploads_ns: dict[str, tuple[int, int]] = {}
    returning: list[_Device] = []
    free_ns = begin_ns

    def upload_after(device: _Device, earliest_ns: int) -> tuple[int, int]:
        start_ns = max(earliest_ns, begin_ns + device.update_ns)
        if uplinks is None:
            return start_ns, start_ns + device.upload_ns
        return start_ns, uplinks.sent_ns(device.slot.client_id, start_ns)

    for device in devices:
        start_ns, end_ns = upload_after(device, free_ns)
        absence = device.absence
        if absence is not None and absence.left_ns < end_ns and absence.back_ns > free_ns:
            returning.append(device)
            free_ns = max(free_ns, absence.left_ns)
        else:
            uploads_ns[device.slot.client_id] = start_ns, end_ns
            free_ns = end_ns
    for device in sorted(returning, key=_back_ns):
        start_ns, end_ns = upload_after(device, max(free_ns, _back_ns(device)))
        uploads_ns[device.slot.client_id] = start_ns, end_ns
        free_ns = end_ns
    return uploads_ns


def _back_ns(device: _Device) -> int:
    assert device.absence is not None, "it was away"
    return device.absence.back_ns


def _begin_ns(schedule: ScheduleResponse, distribution_s: float) -> int:
    """When the distribution of the model in a cell ends."""
    return to_ns(schedule.selection_s) + to_ns(distribution_s)


def draw_factors(uncertainty: float, count: int, rng: np.random.Generator) -> Factors:
    """Draw speeds relative to the report: normal around 1, redrawn until positive."""
    factors = rng.normal(1.0, uncertainty, count)
    while (wrong := factors <= 0).any():
        factors[wrong] = rng.normal(1.0, uncertainty, int(wrong.sum()))
    return factors


def _upload_deadline_ns(schedule: ScheduleResponse) -> int | None:
    """In round time; None if the policy has no deadline."""
    if schedule.deadline_s is None:
        return None
    return to_ns(schedule.deadline_s) - to_ns(schedule.aggregation_s)
