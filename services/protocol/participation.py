"""Which clients a round passes over: busy ones, those that did not deliver, those that had their share."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from services.domain.participation import Cooldowns, find_cooldowns, most_rounds
from services.domain.rounds import CandidateOutcome, Round
from services.domain.tasks import Clock, Task
from services.storage.database import Store
from services.storage.sql import Serials

_MAX_COOLDOWN_EVENTS = 1000
"""Per round: events are stored for weeks."""


@dataclass(frozen=True)
class PassedOver:
    """The clients that a round does not draw because of the rounds before it."""

    serials: Mapping[CandidateOutcome, Serials]
    """By the reason."""
    cooldowns: Cooldowns | None
    """None: the task has no cooldown."""


def clients_passed_over(store: Store, task: Task, round_number: int) -> PassedOver:
    """The clients that the round with this number of a task does not draw, beside busy ones."""
    serials: dict[CandidateOutcome, Serials] = {}
    cooldowns = None
    if task.terms.cooldown:
        cooldowns = find_cooldowns(store.slot_history.undelivered(task.serial), task.terms.request_fraction)
        serials[CandidateOutcome.COOLDOWN] = cooldowns.client[cooldowns.until >= round_number]
    if task.terms.max_share is not None:
        most = most_rounds(task.terms.max_share, round_number)
        serials[CandidateOutcome.MAX_SHARE] = store.slot_history.selected_at_least(task.serial, most)
    return PassedOver(serials, cooldowns)


def busy_clients(store: Store, task: Task) -> Serials:
    """The clients that a task leaves alone because they have an open slot in another round."""
    if task.terms.clock is Clock.SIMULATED or task.terms.allow_busy_clients:
        return np.empty(0, dtype=np.int64)
    return store.rounds.busy_clients(task.serial)


def emit_cooldowns(store: Store, round_: Round, cooldowns: Cooldowns | None, now: datetime) -> None:
    """Emit an event for each client whose cooldown begins with this round."""
    if cooldowns is None:
        return
    begun = np.flatnonzero(cooldowns.last_missed == round_.number - 1)[:_MAX_COOLDOWN_EVENTS]
    ids = store.clients.ids_of(cooldowns.client[begun])
    for place in begun.tolist():
        store.events.record(
            "client.cooldown",
            now,
            task_id=round_.task_id,
            round_id=round_.round_id,
            client_id=ids[int(cooldowns.client[place])],
            misses=int(cooldowns.misses[place]),
            until_round=int(cooldowns.until[place]),
        )
