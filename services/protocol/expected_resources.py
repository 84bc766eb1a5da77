"""What to expect of clients: their reports, corrected by past slots and capped; implausible figures."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from services.domain.estimates import correct_reports
from services.domain.plausibility import FLEET_SAMPLE, FleetRange, ImplausibleFigure, PlausibleLimits
from services.domain.radio import RadioModel
from services.domain.resources import ResourceReports
from services.domain.tasks import Task
from services.storage.clients import Client
from services.storage.database import Store
from services.storage.sql import Serials

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
