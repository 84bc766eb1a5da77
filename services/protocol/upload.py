"""Scheduled Update and Upload (step 5 of Protocol 2 in the paper): check and accept updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import (
    MAX_REJECTION_EVENTS_PER_ROUND,
    MAX_REJECTION_EVENTS_PER_SLOT,
    UPLOAD_STATES,
    AcceptedUpdate,
    Round,
    RoundState,
    Slot,
    SlotChange,
    SlotOutcome,
    Timing,
    classify_upload,
    may_have_waited,
)
from services.domain.tasks import Clock, Dispatch, Task
from services.errors import (
    ChannelNotGrantedError,
    ConflictError,
    DataSamplesError,
    DeadlinePassedError,
    ElapsedTimeError,
    EncodingMismatchError,
    NotSelectedError,
    RoundNotCollectingError,
    SlotClosedError,
    SlotNotOpenError,
    UpdateExistsError,
)
from services.protocol.aggregation import close_if_complete
from services.protocol.channel import (
    begin_upload,
    decide,
    end_upload,
    free_slot,
    retry_upload,
    round_time_ns,
)
from services.protocol.transitions import lock_round, move_round
from services.storage.database import Store
from services.storage.model_store import Blob


@dataclass(frozen=True)
class UploadTiming:
    """The timing of an upload. On simulated tasks the client sends the times."""

    began_at: datetime
    elapsed_s: float | None = None
    update_s: float | None = None
    """Duration of the update as the client states it, on both clocks."""
    upload_s: float | None = None


@dataclass(frozen=True)
class UploadContext:
    """The task, round, slot and model that an upload is checked against."""

    task: Task
    round_: Round
    slot: Slot
    model: Blob


@dataclass(frozen=True)
class ReceivedUpdate:
    """A complete and valid upload; its bytes are in the model store."""

    client_id: str
    blob: Blob
    data_samples: int
    arrival: UploadTiming
    at: datetime
    """When its last byte was read."""


def admit_upload(store: Store, round_id: str, client_id: str, arrival: UploadTiming) -> UploadContext:
    """Refuse an upload that cannot be accepted, before its body is read."""
    task, round_, slot, model = store.updates.upload_context(round_id, client_id)
    if slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    _check_clock(task, arrival)
    expected = UploadContext(task, round_, slot, model)
    check_arrival(expected, arrival, arrival.began_at)
    return expected


def check_samples(expected: UploadContext, data_samples: int) -> None:
    """Refuse an update that claims more samples than its client reported."""
    reported = expected.slot.data_samples
    if data_samples > reported:
        raise DataSamplesError(
            f"Fedcs-Data-Samples is {data_samples}, and the client reported {reported} for this round."
        )


def check_encoding(expected: UploadContext, encoding: str) -> None:
    """Refuse an update in another encoding than the round's."""
    wanted = expected.round_.terms.update_encoding
    if encoding != wanted:
        raise EncodingMismatchError(
            f"Fedcs-Encoding is {encoding[:50]!r}, and updates of this round are {wanted!r}."
        )


def check_arrival(expected: UploadContext, arrival: UploadTiming, at: datetime) -> None:
    """Refuse an upload whose last byte arrived too late."""
    if expected.slot.outcome is not SlotOutcome.RECEIVED:  # the same bytes may be sent again at any time
        task, round_ = expected.task, expected.round_
        _check_time(round_, expected.slot, _elapsed_ns(task, round_, arrival, at))


def record_arrivals(store: Store, round_id: str, times: Mapping[str, datetime], now: datetime) -> None:
    """Record the arrival times of uploads before they are checked, by client.

    The round waits for uploads that arrived before the deadline (``close_if_overdue``).
    """
    task, round_ = lock_round(store, round_id)
    if round_.state not in UPLOAD_STATES:
        return
    if round_.terms.dispatch is Dispatch.ON_READY:
        for client_id in sorted(times, key=lambda client_id: times[client_id]):
            round_ = _free_channel(store, task, round_, client_id, at=times[client_id], now=now)
        return
    slots = store.rounds.slots_of(round_.serial, list(times))
    pending = [client_id for client_id, slot in slots.items() if slot.outcome is SlotOutcome.PENDING]
    if pending:
        store.rounds.change_slots(
            round_.serial, {client_id: {"uploaded_at": times[client_id]} for client_id in pending}
        )


def withdraw_arrival(store: Store, round_id: str, client_id: str, arrived_at: datetime) -> None:
    """Remove the arrival time of an upload that could not be checked or stored."""
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is not None and slot.outcome is SlotOutcome.PENDING and slot.uploaded_at == arrived_at:
        store.rounds.change_slot(round_.serial, client_id, uploaded_at=None)
        retry_upload(store, task, round_, slot, arrived_at)


def accept_updates(
    store: Store, round_id: str, received: Sequence[ReceivedUpdate], now: datetime
) -> list[bool | ConflictError]:
    """Record uploads of a round; for each returns whether it is new, or the error."""
    task, round_ = lock_round(store, round_id)
    if round_.terms.dispatch is Dispatch.SCHEDULED:
        return _accept(store, task, round_, received, now)
    outcomes: list[bool | ConflictError] = []
    for update in received:  # each may change to whom the channel is granted
        outcomes += _accept(store, task, store.rounds.get(round_id), [update], now)
    return outcomes


def _accept(
    store: Store, task: Task, round_: Round, received: Sequence[ReceivedUpdate], now: datetime
) -> list[bool | ConflictError]:
    slots = store.rounds.slots_of(round_.serial, [update.client_id for update in received])
    accepted: dict[str, ReceivedUpdate] = {}
    outcomes: list[bool | ConflictError] = []
    for update in received:
        slot = slots[update.client_id]
        before = _digest_before(store, round_, slot, accepted)
        try:
            if before is None:
                elapsed_ns = _elapsed_ns(task, round_, update.arrival, update.at)
                _check_time(round_, slot, elapsed_ns)
                round_ = _check_grant(store, task, round_, update, elapsed_ns=elapsed_ns, now=now)
                accepted[update.client_id] = update
            elif before != update.blob.digest:
                raise UpdateExistsError(
                    f"The client {update.client_id!r} already sent a different update for this round."
                )
            outcomes.append(before is None)
        except ConflictError as refusal:
            outcomes.append(refusal)
    if accepted:
        _record(store, task, round_, slots, accepted, now=now)
    return outcomes


def _digest_before(
    store: Store, round_: Round, slot: Slot, accepted: Mapping[str, ReceivedUpdate]
) -> str | None:
    """The digest of the client's earlier update in this round, if there is one."""
    if slot.client_id in accepted:
        return accepted[slot.client_id].blob.digest
    if slot.outcome is not SlotOutcome.RECEIVED:
        return None
    known = store.updates.of_client(round_.serial, slot.client_id)
    assert known is not None, "a received slot has an update"
    return known.digest


def _record(
    store: Store,
    task: Task,
    round_: Round,
    slots: Mapping[str, Slot],
    accepted: Mapping[str, ReceivedUpdate],
    *,
    now: datetime,
) -> None:
    """Record new updates, and close the round if every slot has an outcome."""
    elapsed_s = {
        update.client_id: to_seconds(_elapsed_ns(task, round_, update.arrival, update.at))
        for update in accepted.values()
    }
    changes: dict[str, SlotChange] = {
        update.client_id: {
            "outcome": SlotOutcome.RECEIVED,
            "uploaded_at": update.at,
            "elapsed_s": elapsed_s[update.client_id],
            "grant_expires_ns": None,
            **_actual_times(task, round_, slots[update.client_id], update.arrival, update.at),
        }
        for update in accepted.values()
    }
    store.rounds.change_slots(round_.serial, changes)
    rows = [
        AcceptedUpdate(
            update.client_id, update.blob.digest, update.blob.size_bytes, update.data_samples, update.at
        )
        for update in accepted.values()
    ]
    store.updates.add(round_.serial, rows)
    active_at = max(round_.active_at, *(update.at for update in accepted.values()))
    round_ = store.rounds.change(round_, received=round_.received + len(accepted), active_at=active_at)
    for update in accepted.values():
        _emit(store, round_, "update.received", update.client_id, now, elapsed_s=elapsed_s[update.client_id])
    if round_.state is RoundState.SCHEDULED:
        round_ = move_round(store, round_, RoundState.COLLECTING, now)
    if round_.terms.dispatch is Dispatch.ON_READY:
        (client_id,) = accepted
        at_ns = to_ns(elapsed_s[client_id])
        round_ = decide(store, task, round_, slots[client_id].cell_id, at_ns=at_ns, now=now)
    close_if_complete(store, task, round_, now)


def record_late(store: Store, round_id: str, client_id: str, arrival: UploadTiming, now: datetime) -> None:
    """Record a late update, unless an earlier one of the client arrived in time and is being checked."""
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None or slot.outcome not in (SlotOutcome.PENDING, SlotOutcome.MISSED):
        return
    if slot.outcome is SlotOutcome.PENDING and slot.uploaded_at not in (None, now):
        return
    elapsed_s = to_seconds(_elapsed_ns(task, round_, arrival, now))
    change: SlotChange = {
        "outcome": SlotOutcome.LATE,
        "uploaded_at": now,
        "elapsed_s": elapsed_s,
        "grant_expires_ns": None,
        **_actual_times(task, round_, slot, arrival, now),
    }
    store.rounds.change_slot(round_.serial, client_id, **change)
    _emit(store, round_, "update.late", client_id, now, elapsed_s=elapsed_s)
    if round_.state in UPLOAD_STATES:
        round_ = store.rounds.change(round_, active_at=now)
        close_if_complete(store, task, round_, now)


def decline_slot(store: Store, round_id: str, client_id: str, reason: str, now: datetime) -> Round:
    """Free the slot of a client that will not upload; declining twice is no error."""
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    if slot.outcome is SlotOutcome.DECLINED:
        return round_
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state}; there is nothing to decline.")
    if slot.outcome is not SlotOutcome.PENDING:
        raise _slot_has_outcome(slot)
    store.rounds.change_slot(
        round_.serial, client_id, outcome=SlotOutcome.DECLINED, uploaded_at=None, grant_expires_ns=None
    )
    _emit(store, round_, "update.declined", client_id, now, reason=reason)
    round_ = store.rounds.change(round_, active_at=now)
    round_ = free_slot(store, task, round_, slot, now)
    close_if_complete(store, task, round_, now)
    return store.rounds.get(round_id)


def record_rejection(
    store: Store,
    round_id: str,
    client_id: str,
    reason: str,
    now: datetime,
    *,
    arrived_at: datetime | None = None,
) -> None:
    """Count a rejected upload; the client may try again.

    Events are limited per slot and per round.
    """
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None or slot.outcome is not SlotOutcome.PENDING or round_.state not in UPLOAD_STATES:
        return
    if (
        slot.rejections < MAX_REJECTION_EVENTS_PER_SLOT
        and store.rounds.rejection_events(round_.serial) < MAX_REJECTION_EVENTS_PER_ROUND
    ):
        _emit(store, round_, "update.rejected", client_id, now, reason=reason[:1000])
    store.rounds.change_slot(
        round_.serial,
        client_id,
        rejections=slot.rejections + 1,
        last_rejection=reason[:1000],
        uploaded_at=None if slot.uploaded_at == arrived_at else slot.uploaded_at,
    )
    round_ = store.rounds.change(round_, active_at=now)
    retry_upload(store, task, round_, slot, now)


def start_upload(store: Store, round_id: str, client_id: str, now: datetime) -> None:
    """Refuse an upload on the wall clock that begins without a grant."""
    task, round_ = lock_round(store, round_id)
    begin_upload(store, task, round_, client_id, now)


def _free_channel(
    store: Store, task: Task, round_: Round, client_id: str, *, at: datetime, now: datetime
) -> Round:
    """Record the arrival of an upload that was granted the channel, and grant it to the next client."""
    at_ns = round_time_ns(task, round_, None, at)
    slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
    round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
    if slot.grant_expires_ns is None:
        return round_  # it has lapsed
    store.rounds.change_slot(round_.serial, client_id, uploaded_at=at, grant_expires_ns=None)
    granted_ns = round_time_ns(task, round_, None, max(at, now))
    return decide(store, task, round_, slot.cell_id, at_ns=granted_ns, now=now)


def _check_grant(
    store: Store,
    task: Task,
    round_: Round,
    update: ReceivedUpdate,
    *,
    elapsed_ns: int,
    now: datetime,
) -> Round:
    """Refuse an upload without a grant; on the wall clock, the channel was freed when it arrived."""
    if round_.terms.dispatch is Dispatch.SCHEDULED:
        return round_
    if task.terms.clock is Clock.SIMULATED:
        began_ns = elapsed_ns - to_ns(update.arrival.upload_s or 0.0)
        return end_upload(store, task, round_, update.client_id, began_ns=began_ns, at_ns=elapsed_ns, now=now)
    slot = store.rounds.slots_of(round_.serial, [update.client_id])[update.client_id]
    if slot.granted_ns is None or slot.grant_expires_ns is not None:
        raise ChannelNotGrantedError("The grant has lapsed. Call ready, and wait for the next one.", 1.0)
    return round_


def _check_clock(task: Task, arrival: UploadTiming) -> None:
    simulated = task.terms.clock is Clock.SIMULATED
    if simulated and arrival.elapsed_s is None:
        raise ElapsedTimeError("The task has a simulated clock: send Fedcs-Elapsed-S.")
    if not simulated and not (arrival.elapsed_s is arrival.upload_s is None):
        raise ElapsedTimeError("The task has the wall clock: do not send Fedcs-Elapsed-S or Fedcs-Upload-S.")


def _elapsed_ns(task: Task, round_: Round, arrival: UploadTiming, now: datetime) -> int:
    """Round time of an upload, by the service's clock or as the simulator sent it."""
    return round_time_ns(task, round_, arrival.elapsed_s, now)


def _check_time(round_: Round, slot: Slot, elapsed_ns: int) -> None:
    timing = classify_upload(round_.terms, slot, elapsed_ns)
    elapsed_s = to_seconds(elapsed_ns)
    if timing is Timing.DEADLINE_PASSED:
        deadline_s = to_seconds(round_.terms.upload_deadline_ns or 0)
        raise DeadlinePassedError(
            f"It is {elapsed_s:g} s of the round; uploads had to end before {deadline_s:g} s."
        )
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state} and does not accept updates.")
    if slot.outcome is not SlotOutcome.PENDING:
        raise _slot_has_outcome(slot)
    grace_s = round_.terms.slot_grace_s
    if timing is Timing.SLOT_NOT_OPEN:
        opens_s = to_seconds(slot.window_start_ns) - grace_s
        raise SlotNotOpenError(
            f"The slot opens at {opens_s:g} s of the round; it is {elapsed_s:g} s.", opens_s - elapsed_s
        )
    if timing is Timing.SLOT_CLOSED:
        closed_s = to_seconds(slot.window_end_ns) + grace_s
        raise SlotClosedError(f"The slot closed at {closed_s:g} s of the round; it is {elapsed_s:g} s.")


def _slot_has_outcome(slot: Slot) -> ConflictError:
    if slot.outcome is SlotOutcome.LATE:
        return DeadlinePassedError(f"The update arrived too late, at {slot.elapsed_s:g} s of the round.")
    return RoundNotCollectingError(f"The slot already has an outcome: {slot.outcome}.")


def _actual_times(task: Task, round_: Round, slot: Slot, arrival: UploadTiming, now: datetime) -> SlotChange:
    """The actual durations of update and upload.

    On the wall clock, if the client does not state the duration of its update, it is the time from the end of
    the download to the start of the upload, unless the client may have waited for its slot or the channel.
    """
    if task.terms.clock is Clock.SIMULATED:
        return {"actual_update_s": arrival.update_s, "actual_upload_s": arrival.upload_s}
    update_s = arrival.update_s
    began_ns = _elapsed_ns(task, round_, arrival, arrival.began_at)
    if (
        update_s is None
        and slot.model_fetched_at is not None
        and not may_have_waited(round_.terms, slot, began_ns)
    ):
        update_s = max((arrival.began_at - slot.model_fetched_at).total_seconds(), 0.0)
    return {"actual_update_s": update_s, "actual_upload_s": (now - arrival.began_at).total_seconds()}


def _emit(store: Store, round_: Round, kind: str, client_id: str, now: datetime, **data: object) -> None:
    store.events.record(
        kind, now, task_id=round_.task_id, round_id=round_.round_id, client_id=client_id, **data
    )
