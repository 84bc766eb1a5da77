"""Tasks with many rounds and accuracies, without the hours of training: what workers would have written."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from services.domain.jobs import JobKind
from services.domain.rounds import RoundState, terms_of_round
from services.domain.tasks import Clock, Evaluation, TaskState
from services.storage.database import Database
from services.storage.model_store import Blob
from tests.integration.cell import create_task, fresh_name, open_round, set_model
from tests.integration.rounds_setup import Site, get_round, quick_task, upload_all


def task_with_rounds(site: Site, accuracies: Sequence[float | None], **terms: object) -> dict[str, Any]:
    """A task with a data set and a round for each of these accuracies; None: not evaluated."""
    task = create_task(site.service, **{"name": fresh_name("task"), "dataset": "generated", **terms})
    set_model(site.service, task["task_id"])
    record_rounds(site.worker.database, task["task_id"], accuracies)
    return task


def record_rounds(database: Database, task_id: str, accuracies: Sequence[float | None]) -> None:
    """Rounds of a task that has its model and none yet; each took a minute of the wall clock."""
    began = datetime.now(UTC) - timedelta(hours=1)
    with database.unit_of_work() as uow:
        task = uow.tasks.get(task_id, lock=True)
        initial = uow.models.get(task.serial, 0)
        elapsed_s = task.terms.round_deadline_s if task.terms.clock is Clock.SIMULATED else 60.0
        for number, accuracy in enumerate(accuracies, 1):
            ended_at = began + number * timedelta(minutes=1)
            opened = uow.rounds.add(
                task.serial,
                number,
                terms_of_round(task.terms, initial.size_bytes),
                model_version=number - 1,
                clients=100,
                asked=10,
                opened_at=began,
                window_ends_at=None,
            )
            uow.rounds.change(
                opened,
                state=RoundState.AGGREGATED,
                selected=5 + number % 3,
                received=4 + number % 2,
                started_at=began,
                active_at=ended_at,
                ended_at=ended_at,
                duration_s=60.0,
                task_elapsed_s=elapsed_s * number,
            )
            uow.models.put(task, number, Blob(initial.digest, initial.size_bytes), ended_at)
            if accuracy is not None:
                uow.models.add_evaluation(task, Evaluation(number, accuracy, 2 - accuracy, 100, ended_at))
        uow.tasks.change(
            task,
            state=TaskState.RUNNING,
            rounds=len(accuracies),
            model_version=len(accuracies),
            elapsed_s=elapsed_s * len(accuracies),
            first_round_at=began,
        )
        uow.commit()


def live_task(site: Site, **terms: object) -> tuple[dict[str, Any], dict[str, str]]:
    """A task of a simulated clock with two clients that real rounds can be played with; and their keys."""
    return quick_task(site.service, 2, **{"clock": "simulated", "dataset": "generated", **terms})


def play_round(site: Site, task_id: str, keys: dict[str, str], accuracy: float) -> str:
    """Play a round from its opening to the evaluation of the model that it makes; its id."""
    opened = open_round(site.service, task_id)
    finish_round(site, opened["round_id"], keys, accuracy)
    return str(opened["round_id"])


def finish_round(site: Site, round_id: str, keys: dict[str, str], accuracy: float) -> None:
    """Play an open round to its end, and evaluate the model that it makes."""
    opened = get_round(site.service, round_id)
    upload_all(site.service, opened, keys)
    site.worker.aggregate(site.worker.claim(JobKind.AGGREGATE_ROUND, round_id))
    for job in site.worker.waiting(JobKind.EVALUATE_MODEL, opened["task_id"]):
        site.worker.evaluate(site.worker.take(job), accuracy)
