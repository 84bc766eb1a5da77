"""How a scheduled round really goes: devices are faster or slower than they reported, or never upload.

Section V-A of the paper: in Scheduled Update and Upload, throughput and capability are drawn anew around
what was reported. Uploads keep to the scheduled order; each starts when its update is done and the channel
is free.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from client_sim.scenario import Behaviour
from services.contract.rounds import ScheduleResponse
from services.domain.nanoseconds import round_to_ns, to_ns, to_seconds

_PLAY = 0x706C6179
"""Keeps these dice apart from those that the service rolls for the same seed and round."""

Factors: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Played:
    """What a selected device does in a round. Moments are in round time."""

    client_id: str
    update_s: float
    upload_s: float
    upload_start_s: float | None
    """None: it dropped out, and never uploads."""
    upload_end_s: float | None
    late: bool
    """Whether its upload ends when the round takes no more."""

    @property
    def dropped(self) -> bool:
        """Whether it never uploads."""
        return self.upload_end_s is None


def round_rng(seed: int, round_number: int) -> np.random.Generator:
    """The dice of a round: the same however often the run was interrupted before."""
    return np.random.default_rng([_PLAY, seed, round_number])


def play_round(schedule: ScheduleResponse, behaviour: Behaviour, rng: np.random.Generator) -> list[Played]:
    """What each device does, in upload order."""
    slots = schedule.slots
    drops = rng.random(len(slots)) < behaviour.dropout
    speeds = draw_factors(behaviour.uncertainty, 2 * len(slots), rng).reshape(2, len(slots))
    updates_ns = round_to_ns(np.array([slot.update_s for slot in slots]) / speeds[0]).tolist()
    uploads_ns = round_to_ns(np.array([slot.upload_s for slot in slots]) / speeds[1]).tolist()
    begin_ns = to_ns(schedule.selection_s) + to_ns(schedule.distribution_s)
    deadline_ns = _upload_deadline_ns(schedule)
    played = []
    free_ns = begin_ns
    for slot, dropped, update_ns, upload_ns in zip(slots, drops, updates_ns, uploads_ns, strict=True):
        start_ns = max(free_ns, begin_ns + update_ns)
        end_ns = start_ns + upload_ns
        if not dropped:
            free_ns = end_ns
        played.append(
            Played(
                client_id=slot.client_id,
                update_s=to_seconds(update_ns),
                upload_s=to_seconds(upload_ns),
                upload_start_s=None if dropped else to_seconds(start_ns),
                upload_end_s=None if dropped else to_seconds(end_ns),
                late=not dropped and deadline_ns is not None and end_ns >= deadline_ns,
            )
        )
    return played


def draw_factors(uncertainty: float, count: int, rng: np.random.Generator) -> Factors:
    """How fast devices are, relative to what they reported: normal around 1, drawn anew until positive."""
    factors = rng.normal(1.0, uncertainty, count)
    while (wrong := factors <= 0).any():
        factors[wrong] = rng.normal(1.0, uncertainty, int(wrong.sum()))
    return factors


def _upload_deadline_ns(schedule: ScheduleResponse) -> int | None:
    """In round time; the original protocol, ``fl``, has none."""
    if schedule.policy == "fl":
        return None
    return to_ns(schedule.round_deadline_s) - to_ns(schedule.aggregation_s)
