"""Who was selected, in both kinds of database."""

from services.protocol.aggregation import close_round
from services.protocol.initialization import start_task
from services.protocol.resource_request import open_round
from services.storage.database import Database
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW


def test_an_empty_database_has_no_selection(database: Database) -> None:
    with database.reading() as store:
        assert store.selections.newest_round() is None
        assert store.selections.tasks(10) == []
        assert store.selections.of_round(1).tolist() == []
        serials, times = store.selections.counts(1)
    assert (serials.tolist(), times.tolist()) == ([], [])


def test_the_newest_round_of_all_and_the_tasks_that_have_one(database: Database) -> None:
    with database.unit_of_work() as uow:
        old = factories.scheduled_round(uow, "a")
        new = factories.scheduled_round(uow, "b", name="newer")
        start_task(uow, factories.terms(name="no round"), NOW)
        assert uow.selections.newest_round() == new
        assert uow.selections.tasks(10) == [(new.task_id, "newer"), (old.task_id, "digits")]
        assert uow.selections.tasks(1) == [(new.task_id, "newer")]
        close_round(uow, old.round_id, NOW)
        again = open_round(uow, old.task_id, NOW)
        assert uow.selections.newest_round() == again


def test_who_was_selected_in_upload_order(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "fast", "slow", "silent", "removed")
        rates = {"fast": 4e6, "slow": 1e6, "removed": 2e6}
        uow.reports.add([factories.report(serials[item], throughput_bps=bps) for item, bps in rates.items()])
        round_ = open_round(uow, factories.ready_task(uow).task_id, NOW)
        in_order = [slot.client_id for slot in uow.rounds.slots(round_.serial)]
        assert sorted(in_order) == sorted(rates)
        assert uow.selections.of_round(round_.serial).tolist() == [serials[item] for item in in_order]
        uow.clients.remove("removed")
        left = [serials[item] for item in in_order if item != "removed"]
        assert uow.selections.of_round(round_.serial).tolist() == left
        assert uow.selections.of_round(round_.serial + 1).tolist() == []


def test_how_often_a_task_has_selected_each(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.reporting_clients(uow, "always", "removed")
        task = factories.ready_task(uow)
        for late in ("twice", "once", None):
            close_round(uow, open_round(uow, task.task_id, NOW).round_id, NOW)
            if late:
                serials |= factories.reporting_clients(uow, late)
        factories.scheduled_round(uow, "of another task")
        uow.clients.remove("removed")
        found, times = uow.selections.counts(task.serial)
        counts = dict(zip(found.tolist(), times.tolist(), strict=True))
    assert counts == {serials["always"]: 3, serials["twice"]: 2, serials["once"]: 1}
