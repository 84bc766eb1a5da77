"""What the overview shows, in both kinds of database."""

from datetime import timedelta

from services.domain.tasks import Evaluation
from services.protocol.aggregation import close_round
from services.protocol.initialization import start_task
from services.protocol.resource_request import open_round
from services.storage.database import Database
from services.storage.searches import ClientSearch, ClientState
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE


def test_an_empty_database_has_an_overview(database: Database) -> None:
    with database.reading() as store:
        assert store.overview.newest_rounds([]) == {}
        assert store.overview.accuracy_curves([]) == {}
        assert store.overview.clients(NOW) == (0, 0)
        jobs = store.overview.unfinished_jobs(NOW)
    assert (jobs.waiting, jobs.waiting_since, jobs.under_way) == (0, None, 0)


def test_the_newest_round_of_each_task_that_is_asked_for(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a", "b")
        close_round(uow, first.round_id, NOW)  # without an update it fails
        second = open_round(uow, first.task_id, NOW)
        other = factories.scheduled_round(uow, "c")
        no_round = start_task(uow, factories.terms(), NOW)
        serials = [first.task_serial, no_round.serial]
        found = uow.overview.newest_rounds(serials)
        assert other.task_serial not in found
    assert found == {first.task_serial: second}


def test_a_long_curve_is_thinned_out_and_ends_with_the_newest(database: Database) -> None:
    with database.unit_of_work() as uow:
        long, short, other = (factories.ready_task(uow) for _ in range(3))
        for version in range(200):
            if version:
                uow.models.put(long, version, UPDATE, NOW)
            if version != 199:  # is being evaluated
                uow.models.add_evaluation(long, Evaluation(version, version / 1000, 1.0, 10, NOW))
        uow.tasks.change(long, model_version=199)
        for task in (short, other):
            uow.models.add_evaluation(task, Evaluation(0, 0.5, None, 10, NOW))
        curves = uow.overview.accuracy_curves([long.serial, short.serial])
    assert curves == {
        long.serial: [version / 1000 for version in (*range(0, 198, 7), 198)],
        short.serial: [0.5],
    }


def test_clients_with_a_fresh_report(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "old", "new", "silent")
        moments = {"old": [NOW - timedelta(hours=2)], "new": [NOW - timedelta(hours=2), NOW - SECOND, NOW]}
        for client_id, observed in moments.items():
            uow.reports.add([factories.report(serials[client_id], observed_at=item) for item in observed])
        fresh_since = NOW - timedelta(hours=1)
        assert uow.overview.clients(fresh_since) == (3, 1)
        assert uow.overview.clients(NOW) == (3, 1)
        assert uow.overview.clients(NOW + SECOND) == (3, 0)
        in_state = {
            state: {
                client.client_id
                for client in uow.searches.clients(
                    ClientSearch(state=state), fresh_since, Paging(1, 20)
                ).items
            }
            for state in ClientState
        }
    assert in_state == {
        ClientState.REPORTING: {"new"},
        ClientState.STALE: {"old", "silent"},
        ClientState.SILENT: {"silent"},
    }


def test_jobs_that_wait_and_those_under_way(database: Database) -> None:
    with database.unit_of_work() as uow:
        tasks = [start_task(uow, factories.terms(), NOW + number * SECOND) for number in range(3)]
        jobs = uow.jobs.to_publish(NOW + 5 * SECOND, SECOND, 10)
        assert len(jobs) == len(tasks)
        uow.jobs.claim(jobs[0].job_id, NOW, 10 * SECOND)
        found = uow.overview.unfinished_jobs(NOW + 9 * SECOND)
        assert (found.waiting, found.waiting_since, found.under_way) == (2, NOW + SECOND, 1)
        assert uow.overview.unfinished_jobs(NOW + 10 * SECOND).under_way == 0, "nobody has heard of it"
        uow.jobs.cancel(task_serial=tasks[2].serial)
        assert uow.overview.unfinished_jobs(NOW).waiting == 1
