"""The resource reports in both kinds of database."""

from datetime import datetime

import numpy as np

from services.domain.resources import ResourceReports
from services.storage.database import Database, Store
from services.storage.reports import StoredReport
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, report

LONG_AGO = NOW - 1000 * SECOND


def test_the_newest_report_of_each_client_is_found_in_the_order_asked(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b, c = factories.clients(uow, "a", "b", "c").values()
        uow.reports.add(
            [
                report(a, data_samples=1, observed_at=NOW),
                report(a, data_samples=2, observed_at=NOW - SECOND),
                report(c, data_samples=3, observed_at=NOW - SECOND),
                report(c, data_samples=4, observed_at=NOW),
            ]
        )
        where, reports = _newest(uow, [c, b, a])
    assert where == [0, 2]
    assert reports.data_samples.tolist() == [4, 1]


def test_of_reports_of_the_same_moment_the_one_that_came_last_counts(database: Database) -> None:
    with database.unit_of_work() as uow:
        (a,) = factories.clients(uow, "a").values()
        uow.reports.add([report(a, data_samples=number) for number in (3, 1, 2)])
        _, reports = _newest(uow, [a])
    assert reports.data_samples.tolist() == [2]


def test_a_report_for_another_task_does_not_count(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b = factories.clients(uow, "a", "b").values()
        mine, other = factories.ready_task(uow).serial, factories.ready_task(uow).serial
        uow.reports.add(
            [
                report(a, data_samples=1, observed_at=NOW - 2 * SECOND),
                report(a, data_samples=2, observed_at=NOW - SECOND, task_serial=mine),
                report(a, data_samples=3, observed_at=NOW, task_serial=other),
                report(b, data_samples=4, task_serial=other),
            ]
        )
        where, reports = _newest(uow, [a, b], task_serial=mine)
        assert (where, reports.data_samples.tolist()) == ([0], [2])
        where, reports = _newest(uow, [a, b], task_serial=other)
        assert (where, reports.data_samples.tolist()) == ([0, 1], [3, 4])


def test_a_newer_report_for_all_tasks_replaces_an_older_one_for_this_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        (a,) = factories.clients(uow, "a").values()
        mine = factories.ready_task(uow).serial
        uow.reports.add([report(a, data_samples=1, task_serial=mine)])
        uow.reports.add([report(a, data_samples=2, observed_at=NOW + SECOND)])
        _, reports = _newest(uow, [a], task_serial=mine)
    assert reports.data_samples.tolist() == [2]


def test_a_stale_report_does_not_count_and_one_at_the_limit_does(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b = factories.clients(uow, "a", "b").values()
        uow.reports.add([report(a, observed_at=NOW - SECOND), report(b, observed_at=NOW)])
        assert _newest(uow, [a, b], observed_since=NOW)[0] == [1]
        assert _newest(uow, [a, b], observed_since=NOW - SECOND)[0] == [0, 1]


def test_only_what_was_received_since_the_round_opened_answers_its_request(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b = factories.clients(uow, "a", "b").values()
        uow.reports.add(
            [
                report(a, data_samples=1, observed_at=NOW, received_at=NOW - SECOND),
                report(b, data_samples=2, observed_at=NOW, received_at=NOW - SECOND),
                report(b, data_samples=3, observed_at=NOW - SECOND, received_at=NOW),
            ]
        )
        where, reports = _newest(uow, [a, b], received_since=NOW)
        assert (where, reports.data_samples.tolist()) == ([1], [3])
        assert _newest(uow, [a, b])[1].data_samples.tolist() == [1, 2]


def test_throughput_is_told_per_ten_resource_blocks(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b, c = factories.clients(uow, "a", "b", "c").values()
        uow.reports.add(
            [
                report(a, throughput_bps=1e6, report_resource_blocks=10),
                report(b, throughput_bps=1e6, report_resource_blocks=1),
                report(c, throughput_bps=1e6, report_resource_blocks=25),
            ]
        )
        _, reports = _newest(uow, [a, b, c])
    assert reports.throughput_bps.tolist() == [1e6, 1e7, 4e5]
    assert reports.resource_blocks == 10
    assert reports.compute_samples_per_s.tolist() == [100.0] * 3


def test_nobody_asked_and_nobody_reported_are_both_empty(database: Database) -> None:
    with database.unit_of_work() as uow:
        (a,) = factories.clients(uow, "a").values()
        for serials in ([], [a]):
            where, reports = _newest(uow, serials)
            assert (where, len(reports)) == ([], 0)
            assert reports.data_samples.dtype == np.int64


def test_the_newest_reports_of_many_are_found_at_once(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = list(factories.clients(uow, *(f"client-{number}" for number in range(3000))).values())
        uow.reports.add([report(serial, data_samples=serial) for serial in serials])
        asked = serials[::-1]
        where, reports = _newest(uow, asked)
    assert where == list(range(3000))
    assert reports.data_samples.tolist() == asked


def test_a_clients_history_is_listed_newest_first_in_pages(database: Database) -> None:
    with database.unit_of_work() as uow:
        a, b = factories.clients(uow, "a", "b").values()
        task = factories.ready_task(uow)
        radio = {"sinr": 20, "rsrp": 60}
        uow.reports.add(
            [
                report(a, data_samples=1, observed_at=NOW - SECOND, received_at=NOW + SECOND),
                report(a, data_samples=2, observed_at=NOW, task_serial=task.serial, radio=radio),
                report(b, data_samples=3),
                report(a, data_samples=4, observed_at=NOW),
            ]
        )
        uow.commit()
    with database.reading() as store:
        page = store.reports.page(a, Paging(1, 2))
        assert (page.total, [row.data_samples for row in page.items]) == (3, [4, 2])
        assert page.items[1] == StoredReport("a", task.task_id, 1e6, 100.0, 2, 10, NOW, NOW, radio, None)
        (last,) = store.reports.page(a, Paging(2, 2)).items
        assert last == StoredReport("a", None, 1e6, 100.0, 1, 10, NOW - SECOND, NOW + SECOND, None, None)
        assert store.reports.page(a, Paging(3, 2)).items == []


def test_old_reports_are_forgotten_some_at_a_time_and_newer_ones_stay(database: Database) -> None:
    with database.unit_of_work() as uow:
        (a,) = factories.clients(uow, "a").values()
        uow.reports.add(
            [report(a, data_samples=n, received_at=NOW + n * SECOND, observed_at=LONG_AGO) for n in range(6)]
        )
        limit = NOW + 4 * SECOND
        assert uow.reports.delete_before(limit, most=3) == 3
        assert _left(uow, a) == [3, 4, 5]
        assert uow.reports.delete_before(limit, most=3) == 1
        assert uow.reports.delete_before(limit, most=3) == 0
        assert _left(uow, a) == [4, 5]


def _newest(
    store: Store,
    serials: list[int],
    *,
    task_serial: int = -1,
    observed_since: datetime = LONG_AGO,
    received_since: datetime | None = None,
) -> tuple[list[int], ResourceReports]:
    where, reports = store.reports.newest(
        np.array(serials, dtype=np.int64),
        task_serial,
        observed_since=observed_since,
        received_since=received_since,
    )
    return where.tolist(), reports


def _left(store: Store, client_serial: int) -> list[int]:
    return sorted(report_.data_samples for report_ in store.reports.page(client_serial, Paging(1, 100)).items)
