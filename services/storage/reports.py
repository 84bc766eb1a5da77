"""Resource reports: the history of a client, and the newest reports of many clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, delete, or_, select

from services.domain.resources import REPORT_RESOURCE_BLOCKS, ResourceReports
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    as_dataclass,
    count_rows,
    insert_tuples,
    numbers_table,
)
from services.storage.tables import clients, resource_reports, tasks


@dataclass(frozen=True)
class StoredReport:
    """One resource report as it was received."""

    client_id: str
    task_id: str | None
    throughput_bps: float
    compute_samples_per_s: float
    data_samples: int
    report_resource_blocks: int
    observed_at: datetime
    received_at: datetime
    radio: Mapping[str, Any] | None
    cell_id: str | None


_COLUMNS = (
    "client_serial",
    "task_serial",
    "throughput_bps",
    "compute_samples_per_s",
    "data_samples",
    "report_resource_blocks",
    "observed_at",
    "received_at",
    "radio",
    "cell_id",
)
ReportRow: TypeAlias = tuple[int, int | None, float, float, int, int, int, int, str | None, str | None]
"""The columns above: timestamps in microseconds, radio measurements as JSON."""

NO_TASK = 0
"""No task: only reports for all tasks count."""


class Reports(Repository):
    """The resource reports in a database."""

    def add(self, rows: Sequence[ReportRow]) -> None:
        """Insert new reports."""
        insert_tuples(self._connection, resource_reports.name, _COLUMNS, rows)

    def page(self, client_serial: int, paging: Paging) -> Page[StoredReport]:
        """A client's history, newest first."""
        query = (
            select(resource_reports, clients.c.client_id, tasks.c.task_id)
            .join_from(resource_reports, clients)
            .outerjoin(tasks, tasks.c.serial == resource_reports.c.task_serial)
            .where(resource_reports.c.client_serial == client_serial)
        )
        newest_first = query.order_by(resource_reports.c.observed_at.desc(), resource_reports.c.serial.desc())
        rows = self._connection.execute(paging.of(newest_first))
        own = select(resource_reports.c.serial).where(resource_reports.c.client_serial == client_serial)
        return Page([as_dataclass(StoredReport, row) for row in rows], count_rows(self._connection, own))

    def newest(
        self,
        client_serials: npt.NDArray[np.int64],
        task_serial: int | None,
        *,
        observed_since: datetime,
        received_since: datetime | None,
    ) -> tuple[npt.NDArray[np.int64], ResourceReports]:
        """The newest fresh report of each client for the task, with throughput per 10 resource blocks.

        Without a task, the report may be for any. The first array has the indices into ``client_serials`` of
        the clients that have one.
        """
        table, serial = numbers_table(self._connection, client_serials)
        inner = resource_reports.alias()
        fresh = and_(inner.c.client_serial == serial, inner.c.observed_at >= observed_since)
        if task_serial is not None:
            fresh = and_(fresh, or_(inner.c.task_serial.is_(None), inner.c.task_serial == task_serial))
        if received_since is not None:
            fresh = and_(fresh, inner.c.received_at >= received_since)
        newest = (
            select(inner.c.serial)
            .where(fresh)
            .order_by(inner.c.observed_at.desc(), inner.c.serial.desc())
            .limit(1)
            .scalar_subquery()
        )
        query = select(
            resource_reports.c.client_serial,
            resource_reports.c.throughput_bps,
            resource_reports.c.compute_samples_per_s,
            resource_reports.c.data_samples,
            resource_reports.c.report_resource_blocks,
        ).join_from(table, resource_reports, resource_reports.c.serial == newest)
        rows = self._connection.execute(query).all()
        owner, throughput, compute, samples, blocks = zip(*rows, strict=True) if rows else ((),) * 5
        indices = {client: index for index, client in enumerate(client_serials.tolist())}
        where = np.array([indices[client] for client in owner], dtype=np.int64)
        order = np.argsort(where)
        per_ten_blocks = np.array(throughput) * (REPORT_RESOURCE_BLOCKS / np.array(blocks, dtype=np.float64))
        return where[order], ResourceReports(
            throughput_bps=per_ten_blocks[order],
            compute_samples_per_s=np.array(compute, dtype=np.float64)[order],
            data_samples=np.array(samples, dtype=np.int64)[order],
        )

    def delete_before(self, moment: datetime, most: int) -> int:
        """Delete the oldest reports received before a time, at most ``most``; returns their number."""
        oldest = select(resource_reports.c.serial).order_by(resource_reports.c.serial).limit(most)
        done = self._connection.execute(
            delete(resource_reports).where(
                resource_reports.c.serial.in_(oldest.scalar_subquery()),
                resource_reports.c.received_at < moment,
            )
        )
        return done.rowcount
