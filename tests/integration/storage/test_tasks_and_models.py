"""The tasks, model versions and evaluations in both kinds of database."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from services.domain.jobs import TrainingState
from services.domain.rounds import RoundState
from services.domain.tasks import Clock, Evaluation, Score, SlotEnforcement, Task, TaskState
from services.errors import ModelNotFoundError, TaskNotFoundError
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.storage.database import Database, Store
from services.storage.model_store import Blob
from services.storage.models import ModelVersion, Transfer
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND, UPDATE


def test_a_task_is_kept_with_all_its_terms(database: Database) -> None:
    terms = factories.terms(
        name="Köln",
        dataset=None,
        final_deadline_s=400.5,
        target_accuracy=0.75,
        clock=Clock.WALL,
        model_size_bytes=2**40,
        auto_advance=True,
        seed=2**53,
        labels={"class": "car", "city": "Århus"},
        slot_enforcement=SlotEnforcement.STRICT,
        learning_rate=0.1,
        max_update_norm=2.5,
    )
    with database.unit_of_work() as uow:
        added = uow.tasks.add(terms, NOW)
        uow.commit()
    with database.reading() as store:
        kept = store.tasks.get(added.task_id)
    expected = Task(
        serial=added.serial,
        task_id=added.task_id,
        state=TaskState.INITIALIZING,
        terms=terms,
        created_at=NOW,
        ended_at=None,
        outcome=None,
        detail=None,
        model_version=None,
        rounds=0,
        elapsed_s=0.0,
        first_round_at=None,
    )
    assert kept == added == expected
    assert (type(kept.state), type(kept.terms.clock)) == (TaskState, Clock)


def test_an_unknown_task_is_not_found(database: Database) -> None:
    with database.unit_of_work() as uow:
        for lock in (False, True):
            with pytest.raises(TaskNotFoundError, match="'nothing'"):
                uow.tasks.get("nothing", lock=lock)
        known = factories.ready_task(uow)
        assert uow.tasks.serials_of([known.task_id, "nothing"]) == {known.task_id: known.serial}
        assert uow.tasks.id_of(known.serial) == known.task_id


def test_tasks_are_listed_newest_first_by_state_in_pages(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.reporting_clients(uow, "a")
        ids = [factories.ready_task(uow).task_id for _ in range(4)]
        open_round(uow, ids[1], NOW)
        cancel_task(uow, ids[2], NOW)
        uow.commit()
    with database.reading() as store:
        assert _page(store, 1, 3) == (ids[:0:-1], 4)
        assert _page(store, 2, 3) == ([ids[0]], 4)
        assert _page(store, 1, 3, TaskState.READY) == ([ids[3], ids[0]], 2)
        assert _page(store, 1, 3, TaskState.FINISHED) == ([], 0)
        assert [task.task_id for task in store.tasks.idle()] == []


def test_a_change_touches_its_own_task_only(database: Database) -> None:
    with database.unit_of_work() as uow:
        first, other = factories.ready_task(uow), factories.ready_task(uow)
        changed = uow.tasks.change(first, rounds=3, elapsed_s=1.5)
        assert (changed.rounds, changed.elapsed_s) == (3, 1.5)
        assert uow.tasks.get(first.task_id) == changed
        assert uow.tasks.get(other.task_id) == other


def test_whoever_locks_a_task_second_waits_and_then_sees_the_change(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        uow.commit()

    def count_rounds() -> int:
        with database.unit_of_work() as uow:
            return uow.tasks.get(task.task_id, lock=True).rounds

    with ThreadPoolExecutor(1) as pool:
        with database.unit_of_work() as uow:
            uow.tasks.change(uow.tasks.get(task.task_id, lock=True), rounds=5)
            other = pool.submit(count_rounds)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            uow.commit()
        assert other.result(timeout=60) == 5


def test_a_locked_task_does_not_hold_up_the_reports_for_it(postgresql_database: Database) -> None:
    with postgresql_database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        (a,) = factories.clients(uow, "a").values()
        uow.commit()

    def report() -> None:
        with postgresql_database.unit_of_work() as uow:
            uow.reports.add([factories.report(a, task_serial=task.serial)])
            uow.commit()

    with ThreadPoolExecutor(1) as pool, postgresql_database.unit_of_work() as uow:
        uow.tasks.change(uow.tasks.get(task.task_id, lock=True), rounds=1)
        pool.submit(report).result(timeout=60)
        assert uow.reports.page(a, Paging(1, 1)).total == 1


def test_a_model_put_again_takes_the_place_of_the_one_before(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = factories.ready_task(uow), factories.ready_task(uow)
        put = uow.models.put(task, 0, Blob("c" * 64, 2**40), NOW + SECOND)
        assert put == uow.models.get(task.serial, 0) == ModelVersion(0, "c" * 64, 2**40, NOW + SECOND)
        assert uow.models.get(other.serial, 0) == ModelVersion(0, MODEL.digest, MODEL.size_bytes, NOW)
        uow.models.put(task, 1, UPDATE, NOW)
        assert uow.models.get(task.serial, 0) == put
        assert uow.models.get(task.serial, 1).digest == UPDATE.digest
        with pytest.raises(ModelNotFoundError, match="2"):
            uow.models.get(task.serial, 2)


def test_a_file_is_referred_to_by_models_updates_and_trainings(database: Database) -> None:
    digests = {name: name * 64 for name in "0123456"}
    with database.unit_of_work() as uow:
        busy = factories.busy_round(uow)
        task = uow.tasks.get(busy.round_.task_id)
        transfer = Transfer(Blob(digests["5"], 1), 1, 1)
        uow.models.put(task, 1, Blob(digests["1"], 1), NOW, transfer=transfer)
        factories.received_update(uow, busy.round_, "idle", Blob(digests["2"], 1))
        training = uow.trainings.of_client(busy.round_, "trained")
        assert training is not None
        uow.trainings.end(
            training.training_id, state=TrainingState.DONE, ended_at=NOW, digest=digests["3"], size_bytes=1
        )
        uow.commit()
    with database.reading() as store:
        assert store.models.referenced(list(digests.values())) == {digests[name] for name in "1235"}
        assert store.models.referenced([digests["4"]]) == set()
        assert store.models.referenced([]) == set()
    with database.unit_of_work() as uow:
        uow.rounds.change(busy.round_, state=RoundState.AGGREGATED, ended_at=NOW)
        assert uow.models.referenced(list(digests.values())) == {digests["1"], digests["5"]}


def test_a_model_that_was_replaced_is_no_longer_referred_to(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        assert uow.models.referenced([MODEL.digest]) == {MODEL.digest}
        uow.models.put(task, 0, UPDATE, NOW)
        assert uow.models.referenced([MODEL.digest, UPDATE.digest]) == {UPDATE.digest}


def test_evaluations_are_kept_by_version(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = factories.ready_task(uow), factories.ready_task(uow)
        uow.models.put(task, 1, UPDATE, NOW)
        first, second = Evaluation(0, 0.1, 2.5, 1000, NOW), Evaluation(1, 1.0, 0.0, 1000, NOW + SECOND)
        uow.models.add_evaluation(task, first)
        uow.models.add_evaluation(task, second)
        assert uow.models.evaluations(task.serial) == {0: first, 1: second}
        assert uow.models.evaluation(task.serial, 1) == second
        assert uow.models.evaluation(task.serial, 2) is None
        assert uow.models.evaluations(other.serial) == {}


def test_scores_are_kept_by_part_and_version(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = factories.ready_task(uow), factories.ready_task(uow)
        uow.models.put(task, 1, UPDATE, NOW)
        first, second, diverged = Score(10, 7, 2.5), Score(0, 0, 0.0), Score(10, 1, None)
        uow.models.add_score(task, 0, 1, second)
        uow.models.add_score(task, 0, 0, first)
        uow.models.add_score(task, 1, 0, diverged)
        assert uow.models.scores(task.serial, 0) == [first, second]
        assert uow.models.scores(task.serial, 1) == [diverged]
        assert uow.models.scores(other.serial, 0) == []


def _page(store: Store, page: int, per_page: int, state: TaskState | None = None) -> tuple[list[str], int]:
    found = store.tasks.page(Paging(page, per_page), state)
    return [task.task_id for task in found.items], found.total
