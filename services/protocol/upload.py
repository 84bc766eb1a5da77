"""Scheduled Update and Upload (step 5 of Protocol 2 in the paper): updates in time are accepted."""

from dataclasses import dataclass
from datetime import datetime

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import UPLOAD_STATES, Round, RoundState, Slot, SlotOutcome, Timing, judge_upload
from services.domain.tasks import Clock, Task
from services.errors import (
    ConflictError,
    DeadlinePassedError,
    ElapsedTimeError,
    NotSelectedError,
    RoundNotCollectingError,
    SlotClosedError,
    SlotNotOpenError,
    UpdateExistsError,
)
from services.protocol.aggregation import close_if_complete
from services.protocol.moves import lock_round, move_round
from services.protocol.ports import Store, Stored


@dataclass(frozen=True)
class Arrival:
    """An upload on its way. On simulated tasks its times come with the request."""

    began_at: datetime
    elapsed_s: float | None = None
    update_s: float | None = None
    upload_s: float | None = None


@dataclass(frozen=True)
class Expected:
    """What an upload will be held against."""

    task: Task
    round_: Round
    slot: Slot
    model: Stored


def admit_upload(store: Store, round_id: str, client_id: str, arrival: Arrival) -> Expected:
    """Refuse an upload before it is read, if nothing good can come of it."""
    round_ = store.rounds.get(round_id)
    task = store.tasks.get(round_.task_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    _check_clock(task, arrival)
    if slot.outcome is not SlotOutcome.RECEIVED:  # else the same bytes may come again, at any time
        _check_time(task, round_, slot, _elapsed_ns(task, round_, arrival, arrival.began_at))
    return Expected(task, round_, slot, store.models.get(task.serial, round_.model_version))


def accept_update(
    store: Store,
    round_id: str,
    client_id: str,
    blob: Stored,
    *,
    data_samples: int,
    arrival: Arrival,
    now: datetime,
) -> bool:
    """Record an update that has been received and checked; false if it had been recorded before."""
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    assert slot is not None, "admitted"
    if slot.outcome is SlotOutcome.RECEIVED:
        known = store.rounds.update_of(round_.serial, client_id)
        assert known is not None, "received"
        if known.digest == blob.digest:
            return False
        raise UpdateExistsError(f"The client {client_id!r} has sent another update for this round already.")
    elapsed_ns = _elapsed_ns(task, round_, arrival, now)
    _check_time(task, round_, slot, elapsed_ns)
    store.rounds.change_slot(
        round_.serial,
        client_id,
        outcome=SlotOutcome.RECEIVED,
        uploaded_at=now,
        elapsed_s=to_seconds(elapsed_ns),
        **_actual_times(task, slot, arrival, now),
    )
    store.rounds.add_update(round_.serial, client_id, blob, data_samples, now)
    round_ = store.rounds.change(round_, received=round_.received + 1, active_at=now)
    _tell(store, round_, "update.received", client_id, now, elapsed_s=to_seconds(elapsed_ns))
    if round_.state is RoundState.SCHEDULED:
        round_ = move_round(store, round_, RoundState.COLLECTING, now)
    close_if_complete(store, task, round_, now)
    return True


def record_late(store: Store, round_id: str, client_id: str, arrival: Arrival, now: datetime) -> None:
    """Remember that an update came too late."""
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None or slot.outcome not in (SlotOutcome.PENDING, SlotOutcome.MISSED):
        return
    elapsed_s = to_seconds(_elapsed_ns(task, round_, arrival, now))
    store.rounds.change_slot(
        round_.serial,
        client_id,
        outcome=SlotOutcome.LATE,
        uploaded_at=now,
        elapsed_s=elapsed_s,
        **_actual_times(task, slot, arrival, now),
    )
    _tell(store, round_, "update.late", client_id, now, elapsed_s=elapsed_s)
    if round_.state in UPLOAD_STATES:
        round_ = store.rounds.change(round_, active_at=now)
        close_if_complete(store, task, round_, now)


def record_rejection(store: Store, round_id: str, client_id: str, reason: str, now: datetime) -> None:
    """Remember that what came was no acceptable update; the client may try again."""
    _, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None or slot.outcome is not SlotOutcome.PENDING or round_.state not in UPLOAD_STATES:
        return
    store.rounds.change_slot(
        round_.serial, client_id, rejections=slot.rejections + 1, last_rejection=reason[:1000]
    )
    store.rounds.change(round_, active_at=now)
    _tell(store, round_, "update.rejected", client_id, now, reason=reason[:1000])


def _check_clock(task: Task, arrival: Arrival) -> None:
    simulated = task.terms.clock is Clock.SIMULATED
    if simulated and arrival.elapsed_s is None:
        raise ElapsedTimeError("The task goes by a simulated clock: send Fedcs-Elapsed-S.")
    given = (arrival.elapsed_s, arrival.update_s, arrival.upload_s)
    if not simulated and any(value is not None for value in given):
        raise ElapsedTimeError(
            "The task goes by the wall clock: Fedcs-Elapsed-S, -Update-S and -Upload-S are not for it."
        )


def _elapsed_ns(task: Task, round_: Round, arrival: Arrival, now: datetime) -> int:
    """Round time: the service's own, or the simulator's."""
    assert round_.started_at is not None, "a round with slots has started"
    if task.terms.clock is Clock.SIMULATED:
        assert arrival.elapsed_s is not None, "checked"
        return to_ns(arrival.elapsed_s)
    return to_ns((now - round_.started_at).total_seconds())


def _check_time(task: Task, round_: Round, slot: Slot, elapsed_ns: int) -> None:
    timing = judge_upload(task.terms, slot, elapsed_ns)
    elapsed_s = to_seconds(elapsed_ns)
    if timing is Timing.DEADLINE_PASSED:
        deadline_s = to_seconds(task.terms.upload_deadline_ns or 0)
        raise DeadlinePassedError(
            f"It is {elapsed_s:g} s of the round; uploads had to end before {deadline_s:g} s."
        )
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state} and takes no updates.")
    if slot.outcome is not SlotOutcome.PENDING:
        raise _after_the_end(slot)
    grace_s = task.terms.slot_grace_s
    if timing is Timing.SLOT_NOT_OPEN:
        opens_s = to_seconds(slot.window_start_ns) - grace_s
        raise SlotNotOpenError(
            f"The slot opens at {opens_s:g} s of the round; it is {elapsed_s:g} s.", opens_s - elapsed_s
        )
    if timing is Timing.SLOT_CLOSED:
        closed_s = to_seconds(slot.window_end_ns) + grace_s
        raise SlotClosedError(f"The slot closed at {closed_s:g} s of the round; it is {elapsed_s:g} s.")


def _after_the_end(slot: Slot) -> ConflictError:
    if slot.outcome is SlotOutcome.LATE:
        return DeadlinePassedError(f"An update came at {slot.elapsed_s:g} s of the round, too late.")
    return RoundNotCollectingError(f"The slot is settled: {slot.outcome}.")


def _actual_times(task: Task, slot: Slot, arrival: Arrival, now: datetime) -> dict[str, object]:
    """How long update and upload really took, as measured here or told by the simulator."""
    if task.terms.clock is Clock.SIMULATED:
        return {"actual_update_s": arrival.update_s, "actual_upload_s": arrival.upload_s}
    update_s = None
    if slot.model_fetched_at is not None:
        update_s = max((arrival.began_at - slot.model_fetched_at).total_seconds(), 0.0)
    return {"actual_update_s": update_s, "actual_upload_s": (now - arrival.began_at).total_seconds()}


def _tell(store: Store, round_: Round, kind: str, client_id: str, now: datetime, **data: object) -> None:
    store.events.record(
        kind, now, task_id=round_.task_id, round_id=round_.round_id, client_id=client_id, **data
    )
