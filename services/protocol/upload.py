"""Scheduled Update and Upload (step 5 of Protocol 2 in the paper): updates in time are accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import (
    UPLOAD_STATES,
    AcceptedUpdate,
    Round,
    RoundState,
    Slot,
    SlotOutcome,
    Timing,
    judge_upload,
)
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


@dataclass(frozen=True)
class Received:
    """An upload that has come to its end and was found good; its bytes are in the model store."""

    client_id: str
    blob: Stored
    data_samples: int
    arrival: Arrival
    at: datetime


def admit_upload(store: Store, round_id: str, client_id: str, arrival: Arrival) -> Expected:
    """Refuse an upload before it is read, if nothing good can come of it."""
    task, round_, slot, model = store.updates.awaited(round_id, client_id)
    if slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    _check_clock(task, arrival)
    if slot.outcome is not SlotOutcome.RECEIVED:  # else the same bytes may come again, at any time
        _check_time(task, round_, slot, _elapsed_ns(task, round_, arrival, arrival.began_at))
    return Expected(task, round_, slot, model)


def accept_updates(store: Store, round_id: str, received: Sequence[Received]) -> list[bool | ConflictError]:
    """Record uploads of a round that were admitted; of each whether it is new, or why it comes to nothing."""
    task, round_ = lock_round(store, round_id)
    slots = store.rounds.slots_of(round_.serial, [one.client_id for one in received])
    taken: dict[str, Received] = {}
    outcomes: list[bool | ConflictError] = []
    for one in received:
        slot = slots[one.client_id]
        before = _digest_before(store, round_, slot, taken)
        try:
            if before is None:
                _check_time(task, round_, slot, _elapsed_ns(task, round_, one.arrival, one.at))
                taken[one.client_id] = one
            elif before != one.blob.digest:
                raise UpdateExistsError(
                    f"The client {one.client_id!r} has sent another update for this round already."
                )
            outcomes.append(before is None)
        except ConflictError as refusal:
            outcomes.append(refusal)
    if taken:
        _record(store, task, round_, slots, taken)
    return outcomes


def _digest_before(store: Store, round_: Round, slot: Slot, taken: Mapping[str, Received]) -> str | None:
    """The digest of the update that the client has sent before, if it has."""
    if slot.client_id in taken:
        return taken[slot.client_id].blob.digest
    if slot.outcome is not SlotOutcome.RECEIVED:
        return None
    known = store.updates.of_client(round_.serial, slot.client_id)
    assert known is not None, "received"
    return known.digest


def _record(
    store: Store, task: Task, round_: Round, slots: Mapping[str, Slot], taken: Mapping[str, Received]
) -> None:
    """Record new updates, and close the round if nothing more is to come."""
    elapsed_s = {
        one.client_id: to_seconds(_elapsed_ns(task, round_, one.arrival, one.at)) for one in taken.values()
    }
    changes = {
        one.client_id: {
            "outcome": SlotOutcome.RECEIVED,
            "uploaded_at": one.at,
            "elapsed_s": elapsed_s[one.client_id],
            **_actual_times(task, slots[one.client_id], one.arrival, one.at),
        }
        for one in taken.values()
    }
    store.rounds.change_slots(round_.serial, changes)
    accepted = [
        AcceptedUpdate(one.client_id, one.blob.digest, one.blob.size_bytes, one.data_samples, one.at)
        for one in taken.values()
    ]
    store.updates.add(round_.serial, accepted)
    now = max(one.at for one in taken.values())
    round_ = store.rounds.change(round_, received=round_.received + len(taken), active_at=now)
    for one in taken.values():
        _tell(store, round_, "update.received", one.client_id, one.at, elapsed_s=elapsed_s[one.client_id])
    if round_.state is RoundState.SCHEDULED:
        round_ = move_round(store, round_, RoundState.COLLECTING, now)
    close_if_complete(store, task, round_, now)


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
