"""Candidates of a round: which clients it passes over, and what to expect of their reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from services.domain.past_slots import Cooldowns, correct_reports, find_cooldowns, most_rounds
from services.domain.plausibility import FLEET_SAMPLE, FleetRange, ImplausibleFigure, PlausibleLimits
from services.domain.radio import RadioModel
from services.domain.resources import ResourceReports
from services.domain.rounds import CandidateOutcome, Round
from services.domain.tasks import Clock, Task
from services.storage.clients import Client
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


def lock_candidates(store: Store, task: Task) -> None:
    """Let no other round select clients until the transaction ends: none is selected by two at a time.

    All cells are locked, because candidates of an open round may have moved to any of them.
    """
    if task.terms.clock is Clock.WALL:
        store.cells.lock(None)


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


_EVER = datetime(1970, 1, 1, tzinfo=UTC)


def expected_reports(
    store: Store, task: Task, serials: Serials, cell_ids: Sequence[str], reports: ResourceReports
) -> ResourceReports:
    """What to plan a round of a task with: one row for each of these clients, as their reports have."""
    expected = reports
    if task.terms.correct_estimates:
        expected = correct_reports(expected, store.slot_history.measured(task.serial, serials))
    if task.terms.cap_reports:
        expected = _limits(store, cell_ids, _fleet_range(store)).cap(expected)
    return expected


def implausible_figures(store: Store, clients: Sequence[Client]) -> Mapping[str, list[ImplausibleFigure]]:
    """The implausible figures in the newest report of each of these clients that has reported."""
    reported, reports = _newest(store, np.array([client.serial for client in clients], dtype=np.int64))
    of_clients = [clients[place] for place in reported.tolist()]
    limits = _limits(store, [client.cell_id for client in of_clients], _fleet_range(store))
    return {
        client.client_id: figures for client, figures in zip(of_clients, limits.find(reports), strict=True)
    }


def implausible_share(store: Store) -> float:
    """Of a sample of the clients with reports, the share of those with implausible figures."""
    serials = store.clients.sample(FLEET_SAMPLE)
    cells = store.clients.cells_of_serials(serials)
    reported, reports = _newest(store, serials)
    cell_ids = [cells[serial] for serial in serials[reported].tolist()]
    found = _limits(store, cell_ids, FleetRange.of(reports)).find(reports)
    return sum(map(bool, found)) / max(len(found), 1)


def _fleet_range(store: Store) -> FleetRange | None:
    """What a sample of the clients reports."""
    return FleetRange.of(_newest(store, store.clients.sample(FLEET_SAMPLE))[1])


def _newest(store: Store, serials: Serials) -> tuple[Serials, ResourceReports]:
    """The newest reports of clients, for any task and of any age."""
    return store.reports.newest(serials, None, observed_since=_EVER, received_since=None)


def _limits(store: Store, cell_ids: Sequence[str], fleet: FleetRange | None) -> PlausibleLimits:
    """The limits of clients in these cells; in a cell that was removed, those of the radio preset."""
    peaks = {cell.cell_id: cell.radio.peak_throughput_bps for cell in store.cells.all()}
    preset = RadioModel().peak_throughput_bps
    return PlausibleLimits(np.array([peaks.get(cell_id, preset) for cell_id in cell_ids]), fleet)
