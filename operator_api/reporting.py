"""Resource reports on their way from the wire into the database."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from services.contract.reports import ReportRequest, ReportResponse
from services.domain.radio import RadioModel, throughput_from_rsrp, throughput_from_sinr
from services.errors import ClientNotFoundError, FedCSError, TaskNotFoundError
from services.storage.columns import to_microseconds
from services.storage.database import UnitOfWork
from services.storage.reports import ReportRow

_OLDEST = datetime(1970, 1, 1, tzinfo=UTC)
"""Of observations: at the very beginning of the calendar some moments cannot be told in UTC."""


def add_reports(uow: UnitOfWork, reports: Sequence[ReportRequest], now: datetime) -> list[FedCSError | None]:
    """Add those whose client and task are known; for each the reason why not, or none."""
    clients = uow.clients.serials_of(list({report.client_id for report in reports}))
    task_ids = {report.task_id for report in reports if report.task_id is not None}
    tasks = uow.tasks.serials_of(list(task_ids)) if task_ids else {}
    now_us = to_microseconds(now)
    outcomes: list[FedCSError | None] = [None] * len(reports)
    rows: list[ReportRow] = []
    for place, report in enumerate(reports):
        client_serial = clients.get(report.client_id)
        task_serial = None if report.task_id is None else tasks.get(report.task_id)
        if client_serial is None:
            outcomes[place] = ClientNotFoundError(report.client_id)
        elif report.task_id is not None and task_serial is None:
            outcomes[place] = TaskNotFoundError(report.task_id)
        else:
            rows.append(_row(report, client_serial, task_serial, now, now_us))
    if rows:
        uow.reports.add(rows)
    return outcomes


def kept_report(report: ReportRequest, now: datetime) -> ReportResponse:
    """A report as it is shown once it is kept."""
    return ReportResponse(
        client_id=report.client_id,
        task_id=report.task_id,
        throughput_bps=_throughput_bps(report),
        compute_samples_per_s=report.compute_samples_per_s,
        data_samples=report.data_samples,
        report_resource_blocks=report.report_resource_blocks,
        observed_at=_observed_at(report.observed_at, now),
        received_at=now,
        radio=report.radio(),
    )


def _row(
    report: ReportRequest, client_serial: int, task_serial: int | None, now: datetime, now_us: int
) -> ReportRow:
    """A plain tuple, with the common case first: there may be ten thousand of them."""
    radio = report.radio()
    observed_at = report.observed_at
    return (
        client_serial,
        task_serial,
        _throughput_bps(report) if report.throughput_bps is None else report.throughput_bps,
        report.compute_samples_per_s,
        report.data_samples,
        report.report_resource_blocks,
        now_us if observed_at is None else to_microseconds(_observed_at(observed_at, now)),
        now_us,
        None if radio is None else json.dumps(radio),
    )


def _observed_at(given: datetime | None, now: datetime) -> datetime:
    """Nothing is observed in the future: a clock that is ahead would make a report fresh for too long."""
    return now if given is None else max(min(given, now), _OLDEST).astimezone(UTC)


def _throughput_bps(report: ReportRequest) -> float:
    if report.throughput_bps is not None:
        return report.throughput_bps
    if report.ul_nongbr_throughput_ue is not None:
        return report.ul_nongbr_throughput_ue * 1000.0
    radio = RadioModel(resource_blocks=report.report_resource_blocks)
    if report.sinr is not None:
        return throughput_from_sinr(radio, report.sinr)
    assert report.rsrp is not None, "checked by the contract"
    return throughput_from_rsrp(radio, report.rsrp)
