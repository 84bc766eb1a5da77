"""Table and chart of a round: each candidate, its report, its slot and its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from operator_api.dashboard.rendering import as_duration, as_moment
from operator_api.dashboard.wording import NOT_SELECTED
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import (
    Candidate,
    Round,
    RoundCell,
    RoundState,
    Slot,
    SlotOutcome,
)
from services.domain.tasks import Task
from services.storage.database import Database
from services.storage.round_lists import SelectedClient, outcome_of

_STATES: Mapping[RoundState, str] = {
    RoundState.SCHEDULED: "Clients are selected and have their slots; no update has arrived yet.",
    RoundState.COLLECTING: "Updates are arriving.",
    RoundState.AGGREGATING: "Nothing more is accepted; a worker makes the next model from what arrived.",
    RoundState.CANCELLED: "Its task was cancelled, and the round with it.",
}


def state_text(round_: Round, task: Task) -> str:
    """Where a round is in its life; if it failed, why."""
    if round_.state is RoundState.REQUESTING:
        assert round_.window_ends_at is not None, "it waits for reports"
        return f"Reports are awaited until {as_moment(round_.window_ends_at)}; then clients are selected."
    if round_.state is RoundState.AGGREGATED:
        return f"Version {round_.model_version + 1} of the model was made from {_updates(round_.received)}."
    if round_.state is RoundState.FAILED:
        return _failure(round_, task)
    return _STATES[round_.state]


def candidate_text(candidate: Candidate) -> str:
    """Why a candidate has no slot."""
    text = NOT_SELECTED[candidate.outcome]
    if candidate.cost_ns is not None:
        added = as_duration(to_seconds(candidate.cost_ns))
        text = f"{text} It adds {added}."
    return text + expected_text(candidate)


def expected_text(client: Candidate | SelectedClient) -> str:
    """What was expected of a client, if that is not what it reported."""
    text = ""
    if client.throughput_bps is not None and client.expected_throughput_bps is not None:
        reported, expected = client.throughput_bps / 1e6, client.expected_throughput_bps / 1e6
        text += f" Reported {_figure(reported)} Mbit/s, expected {_figure(expected)}."
    if client.compute_samples_per_s is not None and client.expected_compute_samples_per_s is not None:
        reported, expected = client.compute_samples_per_s, client.expected_compute_samples_per_s
        text += f" Reported {_figure(reported)} samples/s, expected {_figure(expected)}."
    return text


def _figure(number: float) -> str:
    """With two digits, or all of a larger number."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}"


def slot_text(slot: Slot) -> str:
    """What became of a slot, and why."""
    at = "" if slot.elapsed_s is None else as_duration(slot.elapsed_s)
    if slot.outcome in (SlotOutcome.RECEIVED, SlotOutcome.DECLINED):
        return f"Its update arrived at {at}." if at else "The client declined."
    if slot.outcome is SlotOutcome.LATE:
        return f"Its update came at {at}, too late."
    if slot.outcome is SlotOutcome.REJECTED and at:
        return f"Its update arrived at {at} and was discarded: {slot.last_rejection}"
    if slot.rejections:
        times = "once" if slot.rejections == 1 else f"{slot.rejections} times"
        return f"It sent {times} what was no acceptable update: {slot.last_rejection}"
    return _no_update_text(slot)


def _no_update_text(slot: Slot) -> str:
    """Why there is no update yet, or none at all."""
    if slot.outcome is SlotOutcome.REFUSED:
        return f"It was refused the channel: {slot.last_rejection}"
    if slot.outcome is SlotOutcome.MISSED:
        return "Nothing came." if slot.uploaded_at is None else "Its update was not checked in time."
    if slot.uploaded_at is not None:
        return "Its update is being checked."
    if slot.granted_ns is not None:
        return f"The channel was granted to it at {as_duration(to_seconds(slot.granted_ns))}."
    if slot.ready_ns is not None:
        return f"Its update has been ready since {as_duration(to_seconds(slot.ready_ns))}; it waits."
    return "Its update is awaited."


def _channel_text(slot: Slot) -> str:
    """What else happened on the channel."""
    return f" Grants that lapsed: {slot.lapses}." if slot.lapses else ""


def _failure(round_: Round, task: Task) -> str:
    terms = task.terms
    texts = {
        "TOO_FEW_CLIENTS": f"Too few clients could be selected: the task needs {terms.min_clients} at least.",
        "TOO_FEW_UPDATES": f"Too few updates could be used: {round_.received}, and the task needs "
        f"{terms.min_updates} at least.",
        "SCHEDULE_TOO_LONG": "The schedule would have lasted longer than 18 years.",  # until 0.1
        "IDLE_TIMEOUT": f"Nothing was heard from its clients for {as_duration(terms.idle_timeout_s)}.",
        "AGGREGATION_FAILED": "No worker could make the model from what arrived; their logs say why.",
    }
    return texts.get(round_.outcome or "", "")


def _updates(number: int) -> str:
    return f"{number} update{'' if number == 1 else 's'}"


PER_PAGE = 100
_COLUMNS_OF: Mapping[str, tuple[str, ...]] = {
    "slot": ("Order",),
    "report": ("Throughput (Mbit/s)", "Capability (samples/s)", "Samples"),
    "cost": ("Cost (s)",),
    "times": (
        "Update, estimated (s)",
        "Update, actual (s)",
        "Upload, estimated (s)",
        "Upload, actual (s)",
        "Slot from (s)",
        "Slot to (s)",
        "Upload ended (s)",
    ),
    "blocks": ("First block", "Blocks", "First time slot", "Time slots of 0.5 ms"),
    "update": (
        "Weight",
        "Step norm",
        "Step scaled by",
        "Statistics norm",
        "Statistics scaled by",
    ),
    "cell": ("Cell",),
}
COLUMNS = tuple((group, name) for group, names in _COLUMNS_OF.items() for name in names)
"""What each row has as numbers, after the client and the outcome: a group to choose, and a name."""
GROUPS: Mapping[str, str] = {
    "report": "report",
    "times": "times",
    "cost": "cost",
    "blocks": "resource blocks",
    "update": "influence of the update",
    "cell": "cell",
}
"""The groups of columns to choose from."""
DEFAULT_GROUPS = ("times",)

_NONE = "–"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    key: str
    """Names it in the page."""
    client_id: str
    outcome: str
    why: str
    numbers: tuple[str, ...]
    """As ``COLUMNS`` says."""
    replaces: str | None = None
    """The client whose place it took."""


def slot_row(selected: SelectedClient, cells: Mapping[str, RoundCell]) -> Row:
    """A client with a slot."""
    slot = selected.slot
    cell = cells[slot.cell_id]
    numbers = (
        _whole(slot.order),
        _megabits(selected.throughput_bps),
        _number(selected.compute_samples_per_s),
        _whole(slot.data_samples),
        _NONE,
        _time(slot.update_ns),
        _number(slot.actual_update_s),
        _time(slot.upload_ns),
        _number(slot.actual_upload_s),
        _time(slot.window_start_ns),
        _time(slot.window_end_ns),
        _number(slot.elapsed_s),
        _whole(cell.resource_block_first),
        _whole(cell.resource_block_count),
        _whole(slot.time_slot_first),
        _whole(slot.time_slot_count),
        _NONE if slot.weight is None else _whole(slot.weight),
        _number(slot.update_norm),
        _number(slot.update_scale),
        _number(slot.statistics_norm),
        _number(slot.statistics_scale),
        slot.cell_id,
    )
    return Row(
        f"slot-{slot.cell_id}-{slot.order}",
        slot.client_id,
        outcome_of(slot),
        slot_text(slot) + _channel_text(slot) + expected_text(selected),
        numbers,
        slot.replaces,
    )


def candidate_row(candidate: Candidate) -> Row:
    """A client without a slot."""
    numbers = (
        _NONE,
        _megabits(candidate.throughput_bps),
        _number(candidate.compute_samples_per_s),
        _NONE if candidate.data_samples is None else _whole(candidate.data_samples),
        _time(candidate.cost_ns),
        _time(candidate.update_ns),
        _NONE,
        _time(candidate.upload_ns),
        *[_NONE] * 13,
        candidate.cell_id,
    )
    key = f"candidate-{candidate.position}"
    return Row(key, candidate.client_id, candidate.outcome.value, candidate_text(candidate), numbers)


def _whole(number: int) -> str:
    return f"{number:,}"


def _number(number: float | None) -> str:
    return _NONE if number is None else f"{number:,.3f}"


def _megabits(bits: float | None) -> str:
    return _NONE if bits is None else f"{bits / 1e6:,.3f}"


def _time(nanoseconds: int | None) -> str:
    return _NONE if nanoseconds is None else f"{to_seconds(nanoseconds):,.3f}"


def load_chart(database: Database, round_id: str) -> dict[str, object]:
    """A round's times and its first slots; names and units are those of ``GET /rounds/{round_id}``."""
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        clock = store.tasks.get(round_.task_id).terms.clock
        slots = [client.slot for client in store.round_lists.selected(round_, PER_PAGE, 0)]
    return {
        "state": round_.state.value,
        "is_open": round_.is_open,
        "clock": clock.value,
        "now": database.now().isoformat(),
        "started_at": None if round_.started_at is None else round_.started_at.isoformat(),
        "duration_s": round_.duration_s,
        "selected": round_.selected,
        **_terms(round_),
        "slots": _columns(round_, slots),
    }


def _terms(round_: Round) -> dict[str, object]:
    return {
        "round_deadline_s": round_.terms.deadline_s,
        "selection_s": round_.terms.selection_s,
        "aggregation_s": round_.terms.aggregation_s,
        "distribution_s": to_seconds(round_.distribution_ns or 0),
        "elapsed_s": to_seconds(round_.elapsed_ns or 0),
    }


def _columns(round_: Round, slots: Sequence[Slot]) -> dict[str, list[object]]:
    return {
        "client_id": [slot.client_id for slot in slots],
        "order": [slot.order for slot in slots],
        "outcome": [outcome_of(slot) for slot in slots],
        "update_s": [to_seconds(slot.update_ns) for slot in slots],
        "upload_s": [to_seconds(slot.upload_ns) for slot in slots],
        "window_start_s": [to_seconds(slot.window_start_ns) for slot in slots],
        "window_end_s": [to_seconds(slot.window_end_ns) for slot in slots],
        "begin_s": [to_seconds(slot.window_start_ns - slot.upload_start_ns) for slot in slots],
        "model_fetched_s": [_seconds_into(round_, slot.model_fetched_at) for slot in slots],
        "elapsed_s": [slot.elapsed_s for slot in slots],
        "actual_update_s": [slot.actual_update_s for slot in slots],
        "actual_upload_s": [slot.actual_upload_s for slot in slots],
    }


def _seconds_into(round_: Round, moment: datetime | None) -> float | None:
    """A moment as round time by the wall clock."""
    if moment is None or round_.started_at is None:
        return None
    return (moment - round_.started_at).total_seconds()
