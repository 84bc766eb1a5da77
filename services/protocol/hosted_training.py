"""Hosted local training: a worker trains for a simulated client, and the simulator uploads the result."""

from datetime import datetime

from services.domain.jobs import Job, JobKind, Training, TrainingState
from services.domain.rounds import UPLOAD_STATES
from services.errors import NoDataSetError, NotSelectedError, RoundNotCollectingError
from services.protocol.transitions import emit_training, lock_round
from services.storage.database import Store
from services.storage.model_store import Blob


def request_training(store: Store, round_id: str, client_id: str, partition: int, now: datetime) -> Training:
    """Request the training of a selected client; a repeated request returns the same training."""
    task, round_ = lock_round(store, round_id)
    if task.terms.dataset is None:
        raise NoDataSetError("The task has no dataset for simulated clients to train on.")
    if store.rounds.slot(round_.serial, client_id) is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    if known := store.trainings.of_client(round_, client_id):
        return known
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state}.")
    training = store.trainings.add(round_, client_id, partition, now)
    store.jobs.add(
        JobKind.TRAIN_CLIENT,
        {"training_id": training.training_id},
        task_serial=task.serial,
        round_serial=round_.serial,
        now=now,
    )
    emit_training(store, task.task_id, training, TrainingState.WAITING, now)
    return training


def finish_training(store: Store, claimed: Job, training: Training, blob: Blob, now: datetime) -> bool:
    """Store the update that a worker trained; false if the lease was lost."""
    task, round_ = lock_round(store, training.round_id)
    if not store.jobs.finish(claimed, now):
        return False
    store.trainings.end(
        training.training_id,
        state=TrainingState.DONE,
        ended_at=now,
        digest=blob.digest,
        size_bytes=blob.size_bytes,
    )
    store.rounds.change(round_, active_at=now)
    emit_training(store, task.task_id, training, TrainingState.DONE, now)
    return True
