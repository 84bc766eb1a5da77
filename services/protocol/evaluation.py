"""Evaluation: how good a version of the global model is, and whether that is good enough."""

import math
from dataclasses import replace
from datetime import datetime

from services.domain.evaluation import Evaluation
from services.domain.jobs import Job
from services.domain.tasks import TaskState
from services.protocol.moves import move_task
from services.protocol.ports import Store
from services.protocol.round_end import cancel_open_round


def finish_evaluation(store: Store, claimed: Job, evaluation: Evaluation, now: datetime) -> bool:
    """Take a worker's measurement; false if the job is no longer its own."""
    task = store.tasks.get(claimed.subject["task_id"], lock=True)
    if not store.jobs.finish(claimed, now):
        return False
    if evaluation.loss is not None and not math.isfinite(evaluation.loss):
        evaluation = replace(evaluation, loss=None)
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
