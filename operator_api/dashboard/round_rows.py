"""The table of a round: each client that was asked, what it reported, its slot, and what became of it."""

from dataclasses import dataclass

from operator_api.dashboard.round_words import candidate_text, slot_text
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Candidate
from services.domain.tasks import TaskTerms
from services.storage.round_lists import SelectedClient, fate_of

COLUMNS = (
    "Order",
    "Throughput (Mbit/s)",
    "Capability (samples/s)",
    "Samples",
    "Cost (s)",
    "Update, estimated (s)",
    "Update, actual (s)",
    "Upload, estimated (s)",
    "Upload, actual (s)",
    "Slot from (s)",
    "Slot to (s)",
    "Upload ended (s)",
    "First block",
    "Blocks",
    "First time slot",
    "Time slots of 0.5 ms",
)
"""What each row has as numbers, after the client, the outcome and the reason."""

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


def slot_row(selected: SelectedClient, terms: TaskTerms) -> Row:
    """A client with a slot."""
    slot = selected.slot
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
        "0",
        _whole(terms.resource_blocks),
        _whole(slot.time_slot_first),
        _whole(slot.time_slot_count),
    )
    return Row(f"slot-{slot.order}", slot.client_id, fate_of(slot), slot_text(slot), numbers)


def candidate_row(candidate: Candidate) -> Row:
    """A client without one."""
    numbers = (
        _NONE,
        _megabits(candidate.throughput_bps),
        _number(candidate.compute_samples_per_s),
        _NONE if candidate.data_samples is None else _whole(candidate.data_samples),
        _time(candidate.cost_ns),
        _time(candidate.update_ns),
        _NONE,
        _time(candidate.upload_ns),
        *[_NONE] * 8,
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
