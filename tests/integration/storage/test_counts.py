"""The numbers for monitoring in both kinds of database."""

from services.domain.jobs import JobState
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import Evaluation, TaskState
from services.protocol.aggregation import close_round
from services.protocol.initialization import start_task
from services.storage.database import Database
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE


def test_an_empty_database_counts_zero_of_every_kind(database: Database) -> None:
    with database.reading() as store:
        counts = store.counts.take()
    assert (counts.clients, counts.selected, counts.accuracy) == (0, 0, {})
    assert counts.tasks == dict.fromkeys([item.value for item in TaskState], 0)
    assert counts.rounds == dict.fromkeys([item.value for item in RoundState], 0)
    assert counts.jobs == dict.fromkeys([item.value for item in JobState], 0)
    assert counts.open_slots == dict.fromkeys([item.value for item in SlotOutcome], 0)


def test_everything_is_counted_by_its_state(database: Database) -> None:
    with database.unit_of_work() as uow:
        over = factories.scheduled_round(uow, "x", "y")
        factories.received_update(uow, over, "x")
        close_round(uow, over.round_id, NOW)
        factories.busy_round(uow)
        start_task(uow, factories.terms(), NOW)
        uow.commit()
    with database.reading() as store:
        counts = store.counts.take()
    assert counts.clients == 5
    assert _found(counts.tasks) == {"initializing": 1, "running": 2}
    assert _found(counts.rounds) == {"aggregating": 1, "collecting": 1}
    assert _found(counts.jobs) == {"cancelled": 2, "waiting": 3}
    assert _found(counts.open_slots) == {"pending": 4, "received": 2, "missed": 1}
    assert counts.selected == 2 + 5


def test_slots_of_rounds_that_are_over_count_as_selected_but_not_as_open(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a", "b")
        close_round(uow, round_.round_id, NOW)
        counts = uow.counts.take()
    assert _found(counts.rounds) == {"failed": 1}
    assert (_found(counts.open_slots), counts.selected) == ({}, 2)


def test_the_accuracy_is_that_of_each_tasks_newest_evaluated_model(database: Database) -> None:
    with database.unit_of_work() as uow:
        first, other, _ = factories.ready_task(uow), factories.ready_task(uow), factories.ready_task(uow)
        for version in (1, 2):
            uow.models.put(first, version, UPDATE, NOW)
        uow.models.add_evaluation(first, Evaluation(1, 0.25, 1.0, 10, NOW))
        uow.models.add_evaluation(first, Evaluation(0, 0.75, 1.0, 10, NOW))
        uow.models.add_evaluation(other, Evaluation(0, 0.5, 1.0, 10, NOW))
        accuracy = uow.counts.take().accuracy
    assert accuracy == {first.task_id: 0.25, other.task_id: 0.5}


def _found(counts: object) -> dict[str, float]:
    assert isinstance(counts, dict)
    return {name: number for name, number in counts.items() if number}
