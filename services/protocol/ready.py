"""Clients say that their updates are ready, and grants lapse, with ``dispatch: on_ready``."""

from dataclasses import dataclass
from datetime import datetime

from services.domain.channel import ChannelState
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.resources import REPORT_RESOURCE_BLOCKS
from services.domain.rounds import UPLOAD_STATES, Round, Slot, SlotOutcome
from services.domain.tasks import Clock, Dispatch, Task
from services.errors import (
    DeadlinePassedError,
    NotOnReadyError,
    NotSelectedError,
    RoundNotCollectingError,
)
from services.protocol.aggregation import close_if_complete
from services.protocol.channel import (
    channel_state,
    check_elapsed,
    decide,
    holder_of,
    move_time,
    pending_decisions,
    round_time_ns,
)
from services.protocol.transitions import lock_round
from services.storage.database import Store


@dataclass(frozen=True)
class ChannelNews:
    """What a call changed about the channel, as far as its caller may know."""

    state: ChannelState
    grants: list[Slot]
    """On the wall clock its own only: clients do not learn of each other."""
    replacements: list[str]


def mark_ready(
    store: Store,
    round_id: str,
    client_id: str,
    now: datetime,
    *,
    throughput_bps: float | None = None,
    elapsed_s: float | None = None,
) -> ChannelNews:
    """Note that a client's update is done, and grant it the channel if it is its turn.

    The same call again answers the same; on the wall clock a later throughput replaces an earlier one.
    """
    task, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    if round_.terms.dispatch is Dispatch.SCHEDULED:
        raise NotOnReadyError("The round has dispatch 'scheduled': upload in the slot.")
    check_elapsed(task, elapsed_s)
    if slot.outcome is SlotOutcome.REFUSED:
        return channel_news(store, task, round_, client_id)
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state} and does not accept updates.")
    if slot.outcome is not SlotOutcome.PENDING:
        raise RoundNotCollectingError(f"The slot already has an outcome: {slot.outcome}.")
    at_ns = round_time_ns(task, round_, elapsed_s, now)
    if slot.ready_ns == at_ns:
        return channel_news(store, task, round_, client_id)
    before = holder_of(store, round_, slot.cell_id)
    deadline_ns = round_.terms.upload_deadline_ns
    if deadline_ns is not None and at_ns >= deadline_ns:
        raise DeadlinePassedError(
            f"It is {to_seconds(at_ns):g} s of the round; uploads had to end before "
            f"{to_seconds(deadline_ns):g} s."
        )
    round_ = move_time(store, task, round_, at_ns)
    round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
    if slot.outcome is SlotOutcome.PENDING and slot.granted_ns is None:
        fresh_ns = slot.fresh_upload_ns
        if throughput_bps is not None:
            fresh_ns = _upload_ns(store, round_, slot, throughput_bps)
        ready_ns = at_ns if slot.ready_ns is None else slot.ready_ns
        store.rounds.change_slot(round_.serial, client_id, ready_ns=ready_ns, fresh_upload_ns=fresh_ns)
        round_ = decide(store, task, round_, slot.cell_id, at_ns=at_ns, now=now)
    round_ = store.rounds.change(round_, active_at=now)
    news = channel_news(store, task, round_, client_id, before)
    close_if_complete(store, task, round_, now)
    return news


def channel_news(
    store: Store, task: Task, round_: Round, client_id: str, before: Slot | None = None
) -> ChannelNews:
    """What a client is to know after its call, given who held the channel before."""
    slot = store.rounds.slots_of(round_.serial, [client_id])[client_id]
    holder = holder_of(store, round_, slot.cell_id)
    is_new = holder is not None and (before is None or before.granted_ns != holder.granted_ns)
    replacements = []
    if task.terms.clock is Clock.WALL:
        is_new = holder is not None and holder.client_id == client_id
    else:
        replacements = [
            replacement.client_id
            for replacement in store.rounds.slots(round_.serial)
            if replacement.replaces is not None
            and replacement.outcome is SlotOutcome.PENDING
            and replacement.ready_ns is None
        ]
    return ChannelNews(channel_state(slot), [holder] if holder is not None and is_new else [], replacements)


def is_dispatch_due(store: Store, round_: Round, now: datetime) -> bool:
    """Whether there is something to decide about a channel of a round on the wall clock."""
    if round_.terms.dispatch is Dispatch.SCHEDULED:
        return False
    task = store.tasks.get(round_.task_id)
    if task.terms.clock is Clock.SIMULATED:
        return False
    at_ns = round_time_ns(task, round_, None, now)
    slots = store.rounds.slots(round_.serial)
    return any(
        pending_decisions(task, round_, [slot for slot in slots if slot.cell_id == cell_id], at_ns)
        for cell_id in {slot.cell_id for slot in slots}
    )


def dispatch_round(store: Store, round_id: str, now: datetime) -> None:
    """Let grants lapse that are due in a round on the wall clock, and grant the channels to others."""
    task, round_ = lock_round(store, round_id)
    if round_.state not in UPLOAD_STATES:
        return
    at_ns = round_time_ns(task, round_, None, now)
    for cell in store.rounds.cells(round_.serial):
        round_ = decide(store, task, round_, cell.cell_id, at_ns=at_ns, now=now)
    close_if_complete(store, task, round_, now)


def _upload_ns(store: Store, round_: Round, slot: Slot, throughput_bps: float) -> int:
    blocks = store.rounds.cell(round_.serial, slot.cell_id).resource_block_count
    return to_ns(8 * round_.terms.upload_size_bytes / (throughput_bps * blocks / REPORT_RESOURCE_BLOCKS))
