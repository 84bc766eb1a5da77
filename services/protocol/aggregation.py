"""Aggregation (step 6 of Protocol 2 in the paper): close a round and store the next global model."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from services.domain.clipping import AggregationRecord, UpdateInfluence
from services.domain.jobs import Job, JobKind
from services.domain.noise_scale import update_estimate
from services.domain.rounds import UPLOAD_STATES, Round, RoundState, SlotChange, SlotOutcome
from services.domain.tasks import Task
from services.errors import RoundNotCollectingError
from services.protocol.channel import free_slot
from services.protocol.transitions import (
    add_evaluation_jobs,
    end_round,
    lock_round,
    move_round,
    stop_collection,
)
from services.storage.database import Store
from services.storage.model_store import Blob
from services.storage.models import Transfer

ARRIVALS_KNOWN_AFTER = timedelta(seconds=1)
"""A round is closed at the earliest this long after its deadline. By then every process has recorded the
uploads that arrived before the deadline; clocks may differ by a quarter of a second (ADR 23, ADR 27)."""


def close_round(store: Store, round_id: str, now: datetime) -> Round:
    """End collection now and aggregate the received updates; closing a closed round is no error."""
    task, round_ = lock_round(store, round_id)
    if round_.state in UPLOAD_STATES:
        return _close(store, task, round_, now)
    if round_.state in (RoundState.REQUESTING, RoundState.CANCELLED):
        raise RoundNotCollectingError(f"The round is {round_.state}.")
    return round_


def close_if_complete(store: Store, task: Task, round_: Round, now: datetime) -> None:
    """Close the round if every slot has an outcome."""
    if round_.state in UPLOAD_STATES and not store.rounds.pending_slots(round_.serial):
        _close(store, task, round_, now)


def close_if_overdue(
    store: Store, round_id: str, now: datetime, settle: timedelta, *, has_unrecorded: bool = False
) -> None:
    """Close a round that is past its upload deadline, or without activity for ``idle_timeout_s``.

    After the deadline the round waits, at most ``settle``, until every upload that has arrived is checked.
    ``has_unrecorded`` says that this process has uploads that are not recorded in the store yet; it must be
    read before the transaction begins. An idle round with fewer than ``min_updates`` updates fails as
    `IDLE_TIMEOUT`.
    """
    task, round_ = lock_round(store, round_id)
    if round_.state not in UPLOAD_STATES:
        return
    if round_.upload_deadline_at is not None:
        overdue = now - round_.upload_deadline_at
        is_settled = (
            overdue >= ARRIVALS_KNOWN_AFTER
            and not has_unrecorded
            and not store.rounds.unchecked_uploads(round_.serial)
        )
        if is_settled or overdue >= settle:
            _close(store, task, round_, now)
    elif now >= round_.active_at + timedelta(seconds=task.terms.idle_timeout_s):
        _close(store, task, round_, now, too_few="IDLE_TIMEOUT")


def drop_client(store: Store, client_id: str, round_id: str, now: datetime) -> None:
    """Mark the slot of a client that is being removed as missed."""
    task, round_ = lock_round(store, round_id)
    if round_.state in UPLOAD_STATES:
        store.rounds.change_slot(round_.serial, client_id, outcome=SlotOutcome.MISSED, grant_expires_ns=None)
        slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
        round_ = free_slot(store, task, round_, slot, now)
        close_if_complete(store, task, round_, now)


def finish_aggregation(
    store: Store,
    claimed: Job,
    blob: Blob | None,
    record: AggregationRecord,
    now: datetime,
    *,
    state: Blob | None = None,
    transfer: Transfer | None = None,
) -> bool:
    """Store the aggregated model and its record; false if the lease was lost.

    The round fails if there is no model or it contains too few updates.
    """
    task, round_ = lock_round(store, claimed.subject["round_id"])
    if not store.jobs.finish(claimed, now):
        return False
    round_ = _reject_outliers(store, round_, record.outliers, now)
    _record_influences(store, round_, record.influences)
    if blob is None or round_.received < task.terms.min_updates:
        end_round(store, task, round_, RoundState.FAILED, now, outcome="TOO_FEW_UPDATES")
        return True
    round_ = store.rounds.change(
        round_,
        median_update_norm=record.medians.parameters,
        median_statistics_norm=record.medians.statistics,
    )
    version = round_.model_version + 1
    estimate = store.models.get(task.serial, round_.model_version).noise_estimate
    if record.moments is not None:
        estimate = update_estimate(estimate, record.moments)
    store.models.put(task, version, blob, now, state=state, transfer=transfer, noise_estimate=estimate)
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
        add_evaluation_jobs(store, task, version, now)
    end_round(store, task, round_, RoundState.AGGREGATED, now)
    return True


def _record_influences(store: Store, round_: Round, influences: Mapping[str, UpdateInfluence]) -> None:
    """Record the weight, norms and scales of each update."""
    changes: dict[str, SlotChange] = {
        client_id: {
            "weight": influence.weight,
            "update_norm": influence.norms.parameters,
            "statistics_norm": influence.norms.statistics,
            "update_scale": influence.scales.parameters,
            "statistics_scale": influence.scales.statistics,
        }
        for client_id, influence in influences.items()
    }
    if changes:
        store.rounds.change_slots(round_.serial, changes)


def _reject_outliers(store: Store, round_: Round, outliers: Mapping[str, str], now: datetime) -> Round:
    """Record the updates that were received and then rejected as outliers."""
    for client_id, reason in outliers.items():
        slot = store.rounds.slot(round_.serial, client_id)
        assert slot is not None, "a received update has a slot"
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
    return store.rounds.change(round_, received=round_.received - len(outliers))


def _close(
    store: Store, task: Task, round_: Round, now: datetime, *, too_few: str = "TOO_FEW_UPDATES"
) -> Round:
    stop_collection(store, round_, now)
    if round_.received < task.terms.min_updates:
        return end_round(store, task, round_, RoundState.FAILED, now, outcome=too_few)
    store.jobs.add(
        JobKind.AGGREGATE_ROUND,
        {"round_id": round_.round_id},
        task_serial=task.serial,
        round_serial=round_.serial,
        now=now,
    )
    return move_round(store, round_, RoundState.AGGREGATING, now)
