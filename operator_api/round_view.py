"""Rounds on the wire: JSON, CSV and a Gantt chart."""

import csv
import io

from pydantic import BaseModel

from services.access import Principal, Scope
from services.contract.assignments import Grant
from services.contract.plans import DeadlinePoint
from services.contract.rounds import (
    CellSlot,
    NotSelectedCandidate,
    RoundCellResponse,
    RoundResponse,
    RoundSlot,
    RoundSummary,
    ScheduleResponse,
)
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundCell
from services.domain.rounds import Slot as StoredSlot
from services.errors import NotScheduledError, NotSelectedError
from services.escaping import escape_formula
from services.protocol.ready import ChannelNews
from services.storage.database import Database, Store


def round_summary(round_: Round) -> RoundSummary:
    """A round without its schedule."""
    return RoundSummary.model_validate(round_)


def round_response(store: Store, round_: Round, principal: Principal) -> RoundResponse:
    """A round with its schedule, as far as this caller may see it."""
    schedule = schedule_response(store, round_, principal)
    return RoundResponse.model_validate(vars(round_) | {"schedule": schedule})


def schedule_response(store: Store, round_: Round, principal: Principal) -> ScheduleResponse | None:
    """The schedule of a round, if it has one; of the slots, a client sees its own."""
    slots = store.rounds.slots(round_.serial)
    candidates = store.rounds.candidates(round_.serial) if principal.scope is not Scope.CLIENT else []
    if principal.scope is Scope.CLIENT:
        slots = [slot for slot in slots if slot.client_id == principal.client_id]
        if not slots:
            raise NotSelectedError(
                f"The client {principal.client_id!r} was not selected for the round {round_.round_id!r}."
            )
        own = store.rounds.candidate(round_.serial, slots[0].client_id)
        assert own is not None, "a slot is that of a candidate"
        candidates = [own]
    if round_.started_at is None:
        return None
    known = {candidate.client_id: candidate for candidate in candidates}
    terms = round_.terms
    cells = {cell.cell_id: cell for cell in store.rounds.cells(round_.serial)}
    shown = {slot.cell_id for slot in slots} if principal.scope is Scope.CLIENT else cells.keys()
    longest_ns = max(
        ((cell.distribution_ns or 0) + (cell.elapsed_ns or 0) for cell in cells.values()), default=0
    )
    return ScheduleResponse(
        round_id=round_.round_id,
        policy=terms.policy,
        round_deadline_s=terms.round_deadline_s,
        noise_scale=terms.noise_scale,
        deadline_tradeoff=None
        if terms.deadline_tradeoff is None
        else [DeadlinePoint.model_validate(point) for point in terms.deadline_tradeoff],
        upload_size_bytes=terms.upload_size_bytes,
        download_size_bytes=terms.download_size_bytes,
        update_encoding=terms.update_encoding,
        model_encoding=terms.model_encoding,
        topk_fraction=terms.topk_fraction,
        dispatch=terms.dispatch,
        planning_factor=terms.planning_factor,
        selection_s=terms.selection_s,
        aggregation_s=terms.aggregation_s,
        distribution_s=to_seconds(round_.distribution_ns or 0),
        elapsed_s=to_seconds(round_.elapsed_ns or 0),
        total_s=to_seconds(terms.overhead_ns + longest_ns),
        upper_bound=round_.upper_bound or 0,
        upper_bound_exact=True,
        cells=[_cell(cell) for cell in cells.values() if cell.cell_id in shown],
        slots=[_round_slot(slot, cells[slot.cell_id], known[slot.client_id]) for slot in slots],
        not_selected=[
            _not_selected(candidate)
            for candidate in candidates
            if candidate.outcome is not CandidateOutcome.SELECTED
        ],
    )


def read_schedule(database: Database, round_id: str, principal: Principal) -> ScheduleResponse:
    """The schedule of a round that has one, as far as this caller may see it."""
    with database.reading() as store:
        schedule = schedule_response(store, store.rounds.get(round_id), principal)
    if schedule is None:
        raise NotScheduledError("The round has no schedule: no clients have been selected yet.")
    return schedule


def draw_schedule(schedule: ScheduleResponse) -> bytes:
    """The Gantt chart of a schedule, as SVG."""
    from services.gantt import draw_gantt  # noqa: PLC0415 - imports matplotlib, which is slow

    return draw_gantt(schedule, schedule, "svg")


def planned_slot(slot: StoredSlot, cell: RoundCell) -> CellSlot:
    """A slot as planned."""
    return CellSlot(**_planned(slot, cell))


def channel_response(news: ChannelNews) -> dict[str, list[Grant] | list[str]]:
    """The fields of a ``ChannelResponse``."""
    grants = [
        Grant(
            client_id=slot.client_id,
            cell_id=slot.cell_id,
            granted_s=to_seconds(slot.granted_ns or 0),
            expires_s=to_seconds(slot.grant_expires_ns or 0),
        )
        for slot in news.grants
    ]
    return {"grants": grants, "replacements": news.replacements}


def schedule_csv(schedule: ScheduleResponse) -> str:
    """One line for each candidate: first the slots in order, then the others."""
    columns = ["selected", *dict.fromkeys([*RoundSlot.model_fields, *NotSelectedCandidate.model_fields])]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows({"selected": 1, **_cells(slot)} for slot in schedule.slots)
    writer.writerows({"selected": 0, **_cells(candidate)} for candidate in schedule.not_selected)
    return text.getvalue()


def _cells(row: BaseModel) -> dict[str, object]:
    return {name: escape_formula(value) for name, value in row.model_dump().items()}


def _cell(cell: RoundCell) -> RoundCellResponse:
    return RoundCellResponse(
        cell_id=cell.cell_id,
        resource_block_first=cell.resource_block_first,
        resource_block_count=cell.resource_block_count,
        distribution_s=to_seconds(cell.distribution_ns or 0),
        elapsed_s=to_seconds(cell.elapsed_ns or 0),
    )


def _planned(slot: StoredSlot, cell: RoundCell) -> dict[str, object]:
    return {
        "client_id": slot.client_id,
        "cell_id": slot.cell_id,
        "order": slot.order,
        "update_s": to_seconds(slot.update_ns),
        "upload_s": to_seconds(slot.upload_ns),
        "upload_start_s": to_seconds(slot.upload_start_ns),
        "upload_end_s": to_seconds(slot.upload_end_ns),
        "window_start_s": to_seconds(slot.window_start_ns),
        "window_end_s": to_seconds(slot.window_end_ns),
        "resource_block_first": cell.resource_block_first,
        "resource_block_count": cell.resource_block_count,
        "time_slot_first": slot.time_slot_first,
        "time_slot_count": slot.time_slot_count,
    }


def _round_slot(slot: StoredSlot, cell: RoundCell, candidate: Candidate) -> RoundSlot:
    return RoundSlot(
        **_planned(slot, cell),
        data_samples=slot.data_samples,
        throughput_bps=candidate.throughput_bps,
        expected_throughput_bps=candidate.expected_throughput_bps,
        compute_samples_per_s=candidate.compute_samples_per_s,
        expected_compute_samples_per_s=candidate.expected_compute_samples_per_s,
        outcome=slot.outcome,
        elapsed_s=slot.elapsed_s,
        actual_update_s=slot.actual_update_s,
        actual_upload_s=slot.actual_upload_s,
        rejections=slot.rejections,
        last_rejection=slot.last_rejection,
        weight=slot.weight,
        update_norm=slot.update_norm,
        statistics_norm=slot.statistics_norm,
        update_scale=slot.update_scale,
        statistics_scale=slot.statistics_scale,
        ready_s=None if slot.ready_ns is None else to_seconds(slot.ready_ns),
        granted_s=None if slot.granted_ns is None else to_seconds(slot.granted_ns),
        lapses=slot.lapses,
        replaces=slot.replaces,
    )


def _not_selected(candidate: Candidate) -> NotSelectedCandidate:
    return NotSelectedCandidate.model_construct(
        client_id=candidate.client_id,
        cell_id=candidate.cell_id,
        reason=candidate.outcome,
        throughput_bps=candidate.throughput_bps,
        expected_throughput_bps=candidate.expected_throughput_bps,
        compute_samples_per_s=candidate.compute_samples_per_s,
        expected_compute_samples_per_s=candidate.expected_compute_samples_per_s,
        data_samples=candidate.data_samples,
        update_s=None if candidate.update_ns is None else to_seconds(candidate.update_ns),
        upload_s=None if candidate.upload_ns is None else to_seconds(candidate.upload_ns),
        cost_s=None if candidate.cost_ns is None else to_seconds(candidate.cost_ns),
    )
