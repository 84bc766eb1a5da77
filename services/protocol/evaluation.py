"""Evaluation: store the accuracy of a model version, and finish the task at its target accuracy."""

from datetime import datetime

from services.domain.jobs import Job
from services.domain.tasks import (
    MIN_TARGET_DEVICES,
    PARTS,
    DeviceEvaluation,
    DeviceScore,
    Score,
    TargetMetric,
    Task,
    TaskOutcome,
    TaskState,
    combine_scores,
)
from services.errors import EvaluationExistsError, NotSelectedError
from services.protocol.transitions import cancel_open_round, finish_task
from services.storage.database import Store


def finish_evaluation(store: Store, claimed: Job, score: Score, now: datetime) -> bool:
    """Store the score of one part of the validation data; false if the lease was lost.

    The last part completes the evaluation of the version.
    """
    task = store.tasks.get(claimed.subject["task_id"], lock=True)
    if not store.jobs.finish(claimed, now):
        return False
    version = int(claimed.subject["version"])
    store.models.add_score(task, version, int(claimed.subject["part"]), score)
    scores = store.models.scores(task.serial, version)
    if len(scores) < PARTS:
        return True
    evaluation = combine_scores(version, scores, now)
    store.models.add_evaluation(task, evaluation)
    store.events.record(
        "model.evaluated",
        now,
        task_id=task.task_id,
        version=evaluation.version,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
    )
    if task.terms.target_metric is TargetMetric.SERVER:
        finish_at_target(store, task, evaluation.accuracy, now)
    return True


def finish_at_target(store: Store, task: Task, accuracy: float, now: datetime) -> bool:
    """Finish a running task whose model has this accuracy, if that is its target or more."""
    target = task.terms.target_accuracy
    if target is None or accuracy < target or task.state is not TaskState.RUNNING:
        return False
    cancel_open_round(store, task, now)
    finish_task(store, task, TaskOutcome.TARGET_ACCURACY, now)
    return True


def add_device_evaluation(
    store: Store, task_id: str, version: int, evaluation: DeviceEvaluation, now: datetime, *, client_id: str
) -> DeviceScore:
    """Store what a client measured of a model version on its own data, once per version.

    With ``target_metric: device`` and enough devices, the task finishes at its target accuracy.
    """
    task = store.tasks.get(task_id, lock=True)
    store.models.get(task.serial, version)
    if not store.rounds.was_selected(task.serial, client_id):
        raise NotSelectedError(f"The client {client_id!r} was not selected in the task {task_id!r}.")
    if not store.models.add_device_evaluation(task, version, client_id, evaluation, now):
        raise EvaluationExistsError(f"The client {client_id!r} has evaluated version {version} already.")
    score = store.models.device_evaluations(task.serial, version)[version]
    if task.terms.target_metric is TargetMetric.DEVICE and score.devices >= MIN_TARGET_DEVICES:
        finish_at_target(store, task, score.accuracy, now)
    return score


def record_failed_evaluation(store: Store, task: Task, failed: Job, error: str, now: datetime) -> None:
    """Record why the evaluation of a version failed."""
    version = int(failed.subject["version"])
    if not store.models.set_evaluation_error(task, version, error):
        return  # another part has failed before
    store.events.record("model.not_evaluated", now, task_id=task.task_id, version=version, error=error)
