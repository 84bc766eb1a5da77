"""Resource reports between the wire and the database: limits, conversion, storage."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from fastapi.exceptions import RequestValidationError

from services.contract.reports import ReportRequest, ReportResponse
from services.domain.radio import RadioModel, throughput_from_rsrp, throughput_from_sinr
from services.errors import CellNotFoundError, ClientNotFoundError, FedCSError, TaskNotFoundError
from services.settings import Settings
from services.storage.database import Store, UnitOfWork
from services.storage.reports import ReportRow
from services.storage.sql import to_microseconds

_BPS_PER_KBPS = 1000.0


class ReportLimits:
    """The limits of one service, from its settings."""

    def __init__(self, settings: Settings) -> None:
        self._throughput_bps = (settings.report_min_throughput_bps, settings.report_max_throughput_bps)
        self._compute_samples_per_s = (
            settings.report_min_compute_samples_per_s,
            settings.report_max_compute_samples_per_s,
        )
        self._data_samples = (0, settings.report_max_data_samples)

    def check(self, report: ReportRequest, radio: RadioModel | None) -> ReportRequest:
        """Refuse a report that is outside the limits; the report with its throughput."""
        if not self._accept(report, radio):
            raise RequestValidationError(list(self._errors(report, radio, ())))
        return with_throughput(report, radio)

    def check_batch(
        self, reports: Sequence[ReportRequest], radios: Mapping[int, RadioModel]
    ) -> list[ReportRequest]:
        """Refuse a batch in which a report is outside the limits; the reports with their throughputs.

        ``radios``: of those without a throughput, by their places.
        """
        refused = [
            place for place, report in enumerate(reports) if not self._accept(report, radios.get(place))
        ]
        if refused:
            errors = (
                self._errors(reports[place], radios.get(place), ("reports", place)) for place in refused
            )
            raise RequestValidationError(list(chain.from_iterable(errors)))
        return [with_throughput(report, radios.get(place)) for place, report in enumerate(reports)]

    def add_to_schema(self, schema: dict[str, Any]) -> None:
        """State the limits in the JSON schema of a report."""
        least_bps, most_bps = self._throughput_bps
        limits = {
            "throughput_bps": self._throughput_bps,
            "compute_samples_per_s": self._compute_samples_per_s,
            "data_samples": self._data_samples,
            "ul_nongbr_throughput_ue": (max(least_bps / _BPS_PER_KBPS, 1), most_bps / _BPS_PER_KBPS),
        }
        for name, (least, most) in limits.items():
            described = schema["properties"][name]
            number = next(kind for kind in described.get("anyOf", [described]) if kind.get("type") != "null")
            number.pop("exclusiveMinimum", None)
            number |= {"minimum": least, "maximum": most}

    def _accept(self, report: ReportRequest, radio: RadioModel | None) -> bool:
        least_bps, most_bps = self._throughput_bps
        least_per_s, most_per_s = self._compute_samples_per_s
        return (
            least_bps <= reported_throughput(report, radio)[1] <= most_bps
            and least_per_s <= report.compute_samples_per_s <= most_per_s
            and report.data_samples <= self._data_samples[1]
        )

    def _errors(
        self, report: ReportRequest, radio: RadioModel | None, path: tuple[str | int, ...]
    ) -> Iterator[dict[str, Any]]:
        source, throughput_bps = reported_throughput(report, radio)
        figures = (
            (source, throughput_bps, self._throughput_bps, " bit/s"),
            ("compute_samples_per_s", report.compute_samples_per_s, self._compute_samples_per_s, ""),
            ("data_samples", report.data_samples, self._data_samples, ""),
        )
        for name, value, (least, most), unit in figures:
            if not least <= value <= most:
                reason = f"This service accepts {least:g} to {most:g}{unit}, not {value:g}"
                yield {"type": "out_of_limits", "loc": ("body", *path, name), "msg": reason, "input": value}


_OLDEST = datetime(1970, 1, 1, tzinfo=UTC)
"""Of observations: at the very beginning of the calendar some moments cannot be told in UTC."""


def find_radios(store: Store, reports: Sequence[ReportRequest]) -> dict[int, RadioModel]:
    """The radio of the cell of each report that has no throughput, by its place."""
    places = [place for place, report in enumerate(reports) if needs_radio(report)]
    if not places:
        return {}
    cells = {cell.cell_id: cell.radio for cell in store.cells.all()}
    cell_ids = store.clients.cells_of([reports[place].client_id for place in places])
    return {
        place: cells.get(reports[place].cell_id or cell_ids.get(reports[place].client_id, ""), RadioModel())
        for place in places
    }


def needs_radio(report: ReportRequest) -> bool:
    """Whether its throughput follows from a measurement by the radio of its cell."""
    return report.throughput_bps is None and report.ul_nongbr_throughput_ue is None


def with_throughput(report: ReportRequest, radio: RadioModel | None) -> ReportRequest:
    """The report with the throughput that follows from its measurements."""
    if report.throughput_bps is not None:
        return report
    return report.model_copy(update={"throughput_bps": reported_throughput(report, radio)[1]})


def add_reports(uow: UnitOfWork, reports: Sequence[ReportRequest], now: datetime) -> list[FedCSError | None]:
    """Add those whose client, task and cell are known; for each the reason why not, or none.

    All have a throughput. A client whose report names its cell is in that cell from now on.
    """
    clients = uow.clients.serials_of(list({report.client_id for report in reports}))
    task_ids = {report.task_id for report in reports if report.task_id is not None}
    tasks = uow.tasks.serials_of(list(task_ids)) if task_ids else {}
    names_cells = any(report.cell_id is not None for report in reports)
    cells = {cell.cell_id for cell in uow.cells.all()} if names_cells else set()
    now_us = to_microseconds(now)
    outcomes: list[FedCSError | None] = [None] * len(reports)
    rows: list[ReportRow] = []
    moves: dict[int, str] = {}
    for place, report in enumerate(reports):
        client_serial = clients.get(report.client_id)
        task_serial = None if report.task_id is None else tasks.get(report.task_id)
        if client_serial is None:
            outcomes[place] = ClientNotFoundError(report.client_id)
        elif report.task_id is not None and task_serial is None:
            outcomes[place] = TaskNotFoundError(report.task_id)
        elif report.cell_id is not None and report.cell_id not in cells:
            outcomes[place] = CellNotFoundError(report.cell_id)
        else:
            if report.cell_id is not None:
                moves[client_serial] = report.cell_id
            rows.append(_row(report, client_serial, task_serial, now, now_us))
    if rows:
        uow.reports.add(rows)
    if moves:
        uow.clients.move(moves)
    return outcomes


def kept_report(report: ReportRequest, now: datetime) -> ReportResponse:
    """A report as it is shown once it is kept."""
    return ReportResponse(
        client_id=report.client_id,
        task_id=report.task_id,
        throughput_bps=_throughput_of(report),
        compute_samples_per_s=report.compute_samples_per_s,
        data_samples=report.data_samples,
        report_resource_blocks=report.report_resource_blocks,
        observed_at=_observed_at(report.observed_at, now),
        received_at=now,
        radio=report.radio(),
        cell_id=report.cell_id,
    )


def reported_throughput(report: ReportRequest, radio: RadioModel | None) -> tuple[str, float]:
    """The field that the throughput follows from, and the throughput in bit/s, with the radio of its cell."""
    if report.throughput_bps is not None:
        return "throughput_bps", report.throughput_bps
    if report.ul_nongbr_throughput_ue is not None:
        return "ul_nongbr_throughput_ue", report.ul_nongbr_throughput_ue * 1000.0
    assert radio is not None, "it follows from a measurement"
    radio = replace(radio, resource_blocks=report.report_resource_blocks)
    if report.sinr is not None:
        return "sinr", throughput_from_sinr(radio, report.sinr)
    assert report.rsrp is not None, "checked by the contract"
    return "rsrp", throughput_from_rsrp(radio, report.rsrp)


def _row(
    report: ReportRequest, client_serial: int, task_serial: int | None, now: datetime, now_us: int
) -> ReportRow:
    """A plain tuple, with the common case first: there may be ten thousand of them."""
    radio = report.radio()
    observed_at = report.observed_at
    return (
        client_serial,
        task_serial,
        _throughput_of(report),
        report.compute_samples_per_s,
        report.data_samples,
        report.report_resource_blocks,
        now_us if observed_at is None else to_microseconds(_observed_at(observed_at, now)),
        now_us,
        None if radio is None else json.dumps(radio),
        report.cell_id,
    )


def _throughput_of(report: ReportRequest) -> float:
    assert report.throughput_bps is not None, "checked reports have one"
    return report.throughput_bps


def _observed_at(given: datetime | None, now: datetime) -> datetime:
    """Nothing is observed in the future: a clock that is ahead would make a report fresh for too long."""
    return now if given is None else max(min(given, now), _OLDEST).astimezone(UTC)
