"""Aggregation (step 6 of Protocol 2 in the paper): collection ends, a worker makes the next global model."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from services.domain.evaluation import PARTS
from services.domain.jobs import Job, JobKind
from services.domain.rounds import UPLOAD_STATES, Round, RoundState, SlotOutcome
from services.domain.tasks import Task
from services.errors import RoundNotCollectingError
from services.protocol.moves import lock_round, move_round
from services.protocol.ports import Store, Stored
from services.protocol.round_end import end_round, stop_collection


def close_round(store: Store, round_id: str, now: datetime) -> Round:
    """End collection now and aggregate what has arrived; to close a closed round is no error."""
    task, round_ = lock_round(store, round_id)
    if round_.state in UPLOAD_STATES:
        return _close(store, task, round_, now)
    if round_.state in (RoundState.REQUESTING, RoundState.CANCELLED):
        raise RoundNotCollectingError(f"The round is {round_.state}.")
    return round_


def close_if_complete(store: Store, task: Task, round_: Round, now: datetime) -> None:
    """Close a collecting round as soon as every slot has its outcome."""
    if round_.state in UPLOAD_STATES and not store.rounds.pending_slots(round_.serial):
        _close(store, task, round_, now)


def close_if_overdue(store: Store, round_id: str, now: datetime) -> None:
    """Close a round at its upload deadline; fail one that nobody has been heard of for too long."""
    task, round_ = lock_round(store, round_id)
    if round_.state not in UPLOAD_STATES:
        return
    if round_.upload_deadline_at is not None:
        if now >= round_.upload_deadline_at:
            _close(store, task, round_, now)
    elif now >= round_.active_at + timedelta(seconds=task.terms.idle_timeout_s):
        stop_collection(store, round_, now)
        end_round(store, task, round_, RoundState.FAILED, now, outcome="IDLE_TIMEOUT")


def drop_client(store: Store, client_id: str, round_id: str, now: datetime) -> None:
    """Expect nothing more from a client that is being removed."""
    task, round_ = lock_round(store, round_id)
    if round_.state in UPLOAD_STATES:
        store.rounds.change_slot(round_.serial, client_id, outcome=SlotOutcome.MISSED)
        close_if_complete(store, task, round_, now)


def finish_aggregation(
    store: Store, claimed: Job, blob: Stored | None, left_out: Mapping[str, str], now: datetime
) -> bool:
    """Take the model that a worker aggregated, and whom it left out and why; false if no longer its own job.

    Without a model, or with too few updates in it, the round fails.
    """
    task, round_ = lock_round(store, claimed.subject["round_id"])
    if not store.jobs.finish(claimed, now):
        return False
    round_ = _leave_out(store, round_, left_out, now)
    if blob is None or round_.received < task.terms.min_updates:
        end_round(store, task, round_, RoundState.FAILED, now, outcome="TOO_FEW_UPDATES")
        return True
    version = round_.model_version + 1
    store.models.put(task, version, blob, now)
    task = store.tasks.change(task, model_version=version)
    store.events.record(
        "model.created",
        now,
        task_id=task.task_id,
        round_id=round_.round_id,
        version=version,
        digest=blob.digest,
    )
    if task.terms.dataset is not None:
        for part in range(PARTS):
            subject = {"task_id": task.task_id, "version": str(version), "part": str(part)}
            store.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=task.serial, now=now)
    end_round(store, task, round_, RoundState.AGGREGATED, now)
    return True


def _leave_out(store: Store, round_: Round, left_out: Mapping[str, str], now: datetime) -> Round:
    """Record whose updates had been received and did not become part of the model."""
    for client_id, reason in left_out.items():
        slot = store.rounds.slot(round_.serial, client_id)
        assert slot is not None, "its update was received"
        store.rounds.change_slot(
            round_.serial,
            client_id,
            outcome=SlotOutcome.REJECTED,
            rejections=slot.rejections + 1,
            last_rejection=reason,
        )
        store.events.record(
            "update.rejected",
            now,
            task_id=round_.task_id,
            round_id=round_.round_id,
            client_id=client_id,
            reason=reason,
        )
    return store.rounds.change(round_, received=round_.received - len(left_out))


def _close(store: Store, task: Task, round_: Round, now: datetime) -> Round:
    stop_collection(store, round_, now)
    if round_.received < task.terms.min_updates:
        return end_round(store, task, round_, RoundState.FAILED, now, outcome="TOO_FEW_UPDATES")
    store.jobs.add(
        JobKind.AGGREGATE_ROUND,
        {"round_id": round_.round_id},
        task_serial=task.serial,
        round_serial=round_.serial,
        now=now,
    )
    return move_round(store, round_, RoundState.AGGREGATING, now)
