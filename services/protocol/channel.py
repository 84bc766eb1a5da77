"""Grants of a cell's channel in Scheduled Update and Upload, with ``dispatch: on_ready``.

Every decision of the domain is stored with an event before anybody is told of it.
"""

from collections.abc import Sequence
from datetime import datetime

from services.domain.channel import (
    ChannelClient,
    ChannelDecision,
    ChannelState,
    Decision,
    ExpectedUpload,
    begun_expiry_ns,
    best_replacement,
    dispatch,
)
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import UPLOAD_STATES, CandidateOutcome, Round, Slot, SlotOutcome
from services.domain.schedule import TIME_SLOT_NS
from services.domain.tasks import Clock, Dispatch, Task
from services.errors import ChannelNotGrantedError, ElapsedTimeError, TimeNotMonotonicError
from services.protocol.candidates import busy_clients, lock_candidates
from services.storage.database import Store

_REPLACING = (CandidateOutcome.DEADLINE, CandidateOutcome.NOT_CHOSEN)
"""The outcomes of candidates that were able to take part and were not selected."""
_MIN_RETRY_S = 1.0


def round_time_ns(task: Task, round_: Round, elapsed_s: float | None, now: datetime) -> int:
    """Round time of a call, by the service's clock or as the simulator sent it."""
    assert round_.started_at is not None, "a round with slots has started"
    if task.terms.clock is Clock.SIMULATED:
        assert elapsed_s is not None, "checked by the caller"
        return to_ns(elapsed_s)
    return to_ns((now - round_.started_at).total_seconds())


def known_time_ns(task: Task, round_: Round, now: datetime) -> int:
    """Round time of an event that says no time: on the simulated clock, that of the last call."""
    return round_time_ns(task, round_, to_seconds(round_.latest_ns or 0), now)


def check_elapsed(task: Task, elapsed_s: float | None) -> None:
    """Refuse a ready call that says its time on the wall clock, or does not on the simulated clock."""
    if (task.terms.clock is Clock.SIMULATED) != (elapsed_s is not None):
        raise ElapsedTimeError("Send elapsed_s on a simulated clock, and not on the wall clock.")


def move_time(store: Store, task: Task, round_: Round, at_ns: int) -> Round:
    """Note the time of a call on the simulated clock; refuse an earlier one than before."""
    if task.terms.clock is Clock.WALL:
        return round_
    if round_.latest_ns is not None and at_ns < round_.latest_ns:
        raise TimeNotMonotonicError(
            f"elapsed_s is {to_seconds(at_ns):g}, and the round has come to "
            f"{to_seconds(round_.latest_ns):g} s."
        )
    return store.rounds.change(round_, latest_ns=at_ns)


def channel_state(slot: Slot) -> ChannelState:
    """What the channel is to the client of a slot."""
    if slot.outcome is SlotOutcome.REFUSED:
        return ChannelState.REFUSED
    if slot.granted_ns is not None:
        return ChannelState.GRANTED
    return ChannelState.NOT_READY if slot.ready_ns is None else ChannelState.WAITING


def pending_decisions(task: Task, round_: Round, slots: Sequence[Slot], at_ns: int) -> list[ChannelDecision]:
    """What is to be decided now about the channel of one cell, given its slots."""
    clients = [
        _channel_client(slot)
        for slot in slots
        if slot.outcome is SlotOutcome.PENDING and slot.uploaded_at is None
    ]
    deadline_ns = round_.terms.upload_deadline_ns
    return dispatch(clients, at_ns, deadline_ns, is_wall=task.terms.clock is Clock.WALL)


def decide(store: Store, task: Task, round_: Round, cell_id: str, *, at_ns: int, now: datetime) -> Round:
    """Decide about the channel of a cell, and store the decisions; returns the round."""
    if round_.state not in UPLOAD_STATES:
        return round_
    slots = {slot.client_id: slot for slot in _slots_in(store, round_, cell_id)}
    for decision in pending_decisions(task, round_, list(slots.values()), at_ns):
        slot = slots[decision.client_id]
        at_s = to_seconds(decision.at_ns)
        if decision.decision is Decision.GRANTED:
            assert decision.expires_ns is not None, "a grant lapses"
            store.rounds.change_slot(
                round_.serial,
                slot.client_id,
                granted_ns=decision.at_ns,
                grant_expires_ns=decision.expires_ns,
            )
            _emit(store, round_, decision, cell_id, now, expires_s=to_seconds(decision.expires_ns))
            continue
        _emit(store, round_, decision, cell_id, now)
        if decision.decision is Decision.LAPSED:
            take_back_grant(store, round_, slot, lapses=slot.lapses + 1)
            if slot.lapses:
                continue  # it has been replaced
        else:
            reason = f"An upload that begins at {at_s:g} s would end too late."
            store.rounds.change_slot(
                round_.serial, slot.client_id, outcome=SlotOutcome.REFUSED, last_rejection=reason
            )
        round_ = replace_client(store, task, round_, slot, at_ns=decision.at_ns, now=now)
    return round_


def take_back_grant(store: Store, round_: Round, slot: Slot, lapses: int) -> None:
    """Take the grant back; the client may call ready again."""
    store.rounds.change_slot(
        round_.serial,
        slot.client_id,
        ready_ns=None,
        fresh_upload_ns=None,
        granted_ns=None,
        grant_expires_ns=None,
        lapses=lapses,
    )


def free_slot(store: Store, task: Task, round_: Round, slot: Slot, now: datetime) -> Round:
    """Grant the channel that a client may have held that will not upload, and replace the client."""
    if round_.terms.dispatch is Dispatch.SCHEDULED:
        return round_
    at_ns = known_time_ns(task, round_, now)
    round_ = replace_client(store, task, round_, slot, at_ns=at_ns, now=now)
    return decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)


def retry_upload(store: Store, task: Task, round_: Round, slot: Slot, now: datetime) -> None:
    """Grant the channel to others after an upload that failed; its client may call ready again."""
    if slot.granted_ns is not None:
        take_back_grant(store, round_, slot, slot.lapses)
        decide(store, task, round_, slot.cell_id, at_ns=known_time_ns(task, round_, now), now=now)


def begin_upload(store: Store, task: Task, round_: Round, client_id: str, now: datetime) -> None:
    """Note that an upload begins on the wall clock; refuse it without a grant.

    A device that does not know ready is granted the channel if it is free.
    """
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None or slot.outcome is not SlotOutcome.PENDING or round_.state not in UPLOAD_STATES:
        return  # refused or answered later
    at_ns = round_time_ns(task, round_, None, now)
    round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    if holder_of(store, round_, slot.cell_id) is None and slot.uploaded_at is None:
        store.rounds.change_slot(round_.serial, client_id, ready_ns=at_ns)
        round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    holder = holder_of(store, round_, slot.cell_id)
    if holder is None or holder.client_id != client_id:
        raise _not_granted(holder, at_ns)
    expires_ns = begun_expiry_ns(_channel_client(holder), at_ns)
    store.rounds.change_slot(round_.serial, client_id, grant_expires_ns=expires_ns)


def end_upload(
    store: Store, task: Task, round_: Round, client_id: str, *, began_ns: int, at_ns: int, now: datetime
) -> Round:
    """Note that an upload has ended on the simulated clock; refuse it without a grant."""
    round_ = move_time(store, task, round_, at_ns)
    slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
    round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    holder = holder_of(store, round_, slot.cell_id)
    if holder is None and _was_free(_slots_in(store, round_, slot.cell_id), began_ns):
        store.rounds.change_slot(round_.serial, client_id, ready_ns=began_ns, granted_ns=began_ns)
    elif holder is None or holder.client_id != client_id:
        raise _not_granted(holder, at_ns)
    return round_


def holder_of(store: Store, round_: Round, cell_id: str) -> Slot | None:
    """The slot that the channel of a cell is granted to."""
    return next(
        (slot for slot in _slots_in(store, round_, cell_id) if slot.grant_expires_ns is not None), None
    )


def replace_client(
    store: Store, task: Task, round_: Round, freed: Slot, *, at_ns: int, now: datetime
) -> Round:
    """Select the next best candidate of the same cell that still fits in the place of a client."""
    deadline_ns = round_.terms.upload_deadline_ns
    if deadline_ns is None:
        return round_
    slots = _slots_in(store, round_, freed.cell_id)
    enrolled = store.rounds.serials_of_candidates(round_.serial)
    lock_candidates(store, task)
    busy = set(busy_clients(store, task).tolist())
    possible = [
        candidate
        for candidate in store.rounds.candidates(round_.serial)
        if candidate.cell_id == freed.cell_id
        and candidate.outcome in _REPLACING
        and candidate.client_id in enrolled
        and enrolled[candidate.client_id] not in busy
    ]
    factor, terms = round_.terms.planning_factor, round_.terms
    ready_ns, uploads = [], []
    for candidate in possible:
        assert candidate.update_ns is not None, "it has a report"
        assert candidate.upload_ns is not None, "it has a report"
        download_ns = round(candidate.upload_ns * terms.download_size_bytes / terms.upload_size_bytes)
        ready_ns.append(at_ns + download_ns + candidate.update_ns)
        planned_ns = at_ns + round((download_ns + candidate.update_ns) * factor)
        uploads.append(ExpectedUpload(planned_ns, round(candidate.upload_ns * factor)))
    others = [_expected_upload(slot, factor) for slot in slots if _is_awaited(slot)]
    chosen = best_replacement(uploads, others, at_ns, deadline_ns)
    if chosen is None:
        return round_
    candidate = possible[chosen]
    assert candidate.upload_ns is not None, "it has a report"
    assert candidate.update_ns is not None, "it has a report"
    assert candidate.data_samples is not None, "it has a report"
    begin_ns = freed.window_start_ns - freed.upload_start_ns
    start_ns = max(ready_ns[chosen] - begin_ns, 0)
    end_ns = start_ns + candidate.upload_ns
    first, after = (moment_ns // TIME_SLOT_NS for moment_ns in (start_ns, end_ns))
    slot = Slot(
        client_id=candidate.client_id,
        cell_id=candidate.cell_id,
        order=max(slot.order for slot in slots) + 1,
        data_samples=candidate.data_samples,
        update_ns=candidate.update_ns,
        upload_ns=candidate.upload_ns,
        upload_start_ns=start_ns,
        upload_end_ns=end_ns,
        window_start_ns=begin_ns + start_ns,
        window_end_ns=begin_ns + end_ns,
        time_slot_first=first,
        time_slot_count=after - first,
        replaces=freed.client_id,
    )
    store.rounds.add_slots(round_, [slot])
    store.rounds.select_candidate(round_, slot.client_id)
    store.events.record(
        "channel.replaced",
        now,
        task_id=round_.task_id,
        round_id=round_.round_id,
        client_id=slot.client_id,
        cell_id=slot.cell_id,
        replaces=freed.client_id,
    )
    return store.rounds.change(round_, selected=round_.selected + 1)


def _slots_in(store: Store, round_: Round, cell_id: str) -> list[Slot]:
    return [slot for _, slot in store.rounds.slots_in(cell_id, [round_.serial])]


def _channel_client(slot: Slot) -> ChannelClient:
    return ChannelClient(
        slot.client_id,
        slot.order,
        slot.upload_ns,
        fresh_upload_ns=slot.fresh_upload_ns,
        is_ready=slot.ready_ns is not None and slot.granted_ns is None,
        lapses=slot.lapses,
        grant_expires_ns=slot.grant_expires_ns,
    )


def _is_awaited(slot: Slot) -> bool:
    """Whether an upload is expected: not of clients whose grant has lapsed and that are not ready again."""
    is_pending = slot.outcome is SlotOutcome.PENDING and slot.uploaded_at is None
    return is_pending and (slot.ready_ns is not None or not slot.lapses)


def _expected_upload(slot: Slot, factor: float) -> ExpectedUpload:
    begin_ns = slot.window_start_ns - slot.upload_start_ns
    if slot.ready_ns is not None:
        ready_ns = slot.ready_ns
    elif slot.replaces is not None:
        ready_ns = slot.window_start_ns
    else:
        ready_ns = begin_ns + round(slot.update_ns * factor)
    if slot.fresh_upload_ns is not None:
        return ExpectedUpload(ready_ns, slot.fresh_upload_ns)
    return ExpectedUpload(ready_ns, round(slot.upload_ns * factor))


def _was_free(slots: Sequence[Slot], since_ns: int) -> bool:
    """Whether no upload has ended after this moment."""
    return all(slot.elapsed_s is None or to_ns(slot.elapsed_s) <= since_ns for slot in slots)


def _not_granted(holder: Slot | None, at_ns: int) -> ChannelNotGrantedError:
    retry_s = _MIN_RETRY_S
    if holder is not None:
        assert holder.granted_ns is not None, "it holds the channel"
        ends_ns = holder.granted_ns + _channel_client(holder).expected_upload_ns
        retry_s = max(to_seconds(ends_ns - at_ns), _MIN_RETRY_S)
    return ChannelNotGrantedError(
        "The channel is not granted to this client. Call ready, and wait for the grant.", retry_s
    )


def _emit(
    store: Store, round_: Round, decision: ChannelDecision, cell_id: str, now: datetime, **data: object
) -> None:
    store.events.record(
        f"channel.{decision.decision.value}",
        now,
        task_id=round_.task_id,
        round_id=round_.round_id,
        client_id=decision.client_id,
        cell_id=cell_id,
        at_s=to_seconds(decision.at_ns),
        **data,
    )
