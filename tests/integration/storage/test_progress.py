"""How tasks went, in both kinds of database."""

from services.domain.rounds import RoundState
from services.domain.tasks import Evaluation
from services.protocol.aggregation import close_round
from services.protocol.resource_request import open_round
from services.storage.database import Database
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE


def test_rounds_of_some_tasks_with_what_became_of_their_models(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a", "b")
        close_round(uow, first.round_id, NOW)  # without an update it fails
        second = open_round(uow, first.task_id, NOW)
        made = uow.rounds.change(
            second, state=RoundState.AGGREGATED, ended_at=NOW, received=1, task_elapsed_s=360.0
        )
        task = uow.tasks.get(first.task_id, lock=True)
        uow.models.put(task, 1, UPDATE, NOW)
        uow.tasks.change(task, model_version=1)
        third = open_round(uow, task.task_id, NOW)
        uow.models.add_evaluation(task, Evaluation(0, 0.1, 2.5, 10, NOW))  # no round made that
        uow.models.add_evaluation(task, Evaluation(1, 0.75, None, 10, NOW))
        other = factories.scheduled_round(uow, "c")
        none = factories.ready_task(uow)
        found = uow.progress.of_tasks([task.serial, none.serial])
        assert other.task_serial not in found
        assert uow.progress.of_tasks([]) == {}
        assert uow.progress.rounds([task.serial, other.task_serial], [2, 3]) == {
            task.serial: found[task.serial][1:]
        }
        assert uow.progress.first_with([task.serial, other.task_serial], 0.75) == {task.serial: 2}
        assert uow.progress.first_with([task.serial], 0.1) == {task.serial: 2}, "no round made version 0"
        assert uow.progress.first_with([task.serial], 0.76) == {}
    assert list(found) == [task.serial]
    failed, aggregated, open_ = found[task.serial]
    assert (failed.round_id, failed.number, failed.state) == (first.round_id, 1, RoundState.FAILED)
    assert (failed.outcome, failed.accuracy) == ("TOO_FEW_UPDATES", None), "the next round made version 1"
    assert (aggregated.round_id, aggregated.received) == (made.round_id, 1)
    assert (aggregated.accuracy, aggregated.loss) == (0.75, None)
    assert (open_.round_id, open_.accuracy) == (third.round_id, None)
    assert [item.elapsed_s for item in found[task.serial]] == [180.0, 360.0, None]
    assert (open_.asked, open_.selected, open_.received) == (third.asked, third.selected, 0)
