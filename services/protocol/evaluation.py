"""Evaluation: how good a version of the global model is, and whether that is good enough."""

from datetime import datetime

from services.domain.evaluation import PARTS, Score, sum_up
from services.domain.jobs import Job
from services.domain.tasks import TaskState
from services.protocol.moves import move_task
from services.protocol.ports import Store
from services.protocol.round_end import cancel_open_round


def finish_evaluation(store: Store, claimed: Job, score: Score, now: datetime) -> bool:
    """Take a worker's measurement on one part of the validation data; false if the job is no longer its own.

    With the last part the version's accuracy is known.
    """
    task = store.tasks.get(claimed.subject["task_id"], lock=True)
    if not store.jobs.finish(claimed, now):
        return False
    version = int(claimed.subject["version"])
    store.models.add_score(task, version, int(claimed.subject["part"]), score)
    scores = store.models.scores(task.serial, version)
    if len(scores) < PARTS:
        return True
    evaluation = sum_up(version, scores, now)
    store.models.add_evaluation(task, evaluation)
    store.events.record(
        "model.evaluated",
        now,
        task_id=task.task_id,
        version=evaluation.version,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
    )
    target = task.terms.target_accuracy
    if target is not None and evaluation.accuracy >= target and task.state is TaskState.RUNNING:
        cancel_open_round(store, task, now)
        move_task(store, task, TaskState.FINISHED, now, outcome="The target accuracy is reached.")
    return True
