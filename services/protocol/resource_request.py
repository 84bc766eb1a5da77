"""Resource Request (step 2 of Protocol 2 in the paper): a round opens, and random clients are asked.

Without a report window the newest reports at hand are taken and clients are selected at once. With one, the
round waits for answers, and only reports that came since it opened count.
"""

from datetime import datetime, timedelta

import numpy as np

from services.domain.candidates import draw_candidates
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundState
from services.domain.tasks import Task, TaskState
from services.errors import EvaluationPendingError, ModelNotReadyError, RoundOpenError, TaskOverError
from services.protocol.moves import lock_round, move_task, tell_round
from services.protocol.ports import Store
from services.protocol.round_end import awaits_evaluation, elapsed_at
from services.protocol.scheduling import Asked, schedule_round


def open_round(store: Store, task_id: str, now: datetime) -> Round:
    """Open the next round of a task: draw the candidates, and select if there is nothing to wait for."""
    task = _ready_for_a_round(store, task_id, now)
    number = task.rounds + 1
    clients = store.clients.serials_with(task.terms.labels)
    dice = np.random.default_rng([task.terms.seed, number])
    drawn = clients[draw_candidates(len(clients), task.terms.request_fraction, dice)]
    ids = store.clients.ids_of(drawn)
    serials = np.array([serial for serial in drawn.tolist() if serial in ids], dtype=np.int64)
    client_ids = [ids[serial] for serial in serials.tolist()]
    window_s = task.terms.report_window_s
    round_ = store.rounds.add(
        task.serial,
        number,
        model_version=task.model_version,
        clients=len(clients),
        asked=len(client_ids),
        opened_at=now,
        active_at=now,
        window_ends_at=now + timedelta(seconds=window_s) if window_s else None,
    )
    if task.state is TaskState.READY:
        task = move_task(store, task, TaskState.RUNNING, now, first_round_at=now)
    task = store.tasks.change(task, rounds=number)
    tell_round(store, round_, now)
    if not window_s:
        return schedule_round(store, task, round_, Asked(serials, client_ids), now)
    store.rounds.set_candidates(
        round_,
        [
            Candidate(position, client_id, CandidateOutcome.ASKED)
            for position, client_id in enumerate(client_ids)
        ],
    )
    return round_


def end_report_window(store: Store, round_id: str, now: datetime) -> Round:
    """Select from those who have answered, if that has not been done."""
    task, round_ = lock_round(store, round_id)
    if round_.state is not RoundState.REQUESTING:
        return round_
    serials, client_ids, removed = store.rounds.asked_clients(round_.serial)
    return schedule_round(store, task, round_, Asked(serials, client_ids, removed), now)


def _ready_for_a_round(store: Store, task_id: str, now: datetime) -> Task:
    task = store.tasks.get(task_id, lock=True)
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    if task.state is TaskState.INITIALIZING:
        raise ModelNotReadyError("The task has no initial model yet; wait for it, or set it.")
    if open_round := store.rounds.open_of(task.serial):
        raise RoundOpenError(f"The task has an open round, {open_round.round_id!r}.")
    if awaits_evaluation(store, task):
        raise EvaluationPendingError("The newest model is being evaluated; it may have reached the target.")
    if not task.fits_another_round(elapsed_at(task, now)):
        raise TaskOverError("No further round would end by the task's final deadline.")
    return task
