"""Resource Request (step 2 of Protocol 2 in the paper): open a round and draw its candidates.

Without a report window, clients are selected at once from their newest reports. With a report window, the
round waits for reports and uses only those received after it opened.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import numpy as np

from services.domain.resources import Positions, draw_candidates
from services.domain.rounds import (
    PASSED_OVER,
    Candidate,
    CandidateOutcome,
    Round,
    RoundCell,
    RoundState,
    terms_of_round,
)
from services.domain.tasks import OUTCOME_DETAILS, Task, TaskState, TaskTerms
from services.errors import (
    EvaluationPendingError,
    ModelNotReadyError,
    ResourceBlocksBusyError,
    RoundOpenError,
    TaskOverError,
)
from services.protocol.block_allocation import cells_of_task, choose_blocks, hold_blocks, wait_for_blocks
from services.protocol.candidates import (
    busy_clients,
    clients_passed_over,
    emit_cooldowns,
    lock_candidates,
)
from services.protocol.client_selection import (
    DrawnCandidates,
    DrawnClient,
    schedule_round,
)
from services.protocol.transitions import (
    add_evaluation_jobs,
    awaits_evaluation,
    elapsed_at,
    emit_round,
    finish_if_due,
    lock_round,
    move_task,
)
from services.storage.clients import ClientsByCell
from services.storage.database import Store
from services.storage.sql import Serials


def open_round(store: Store, task_id: str, now: datetime) -> Round:
    """Open the next round: draw the candidates and, without a report window, select at once."""
    task = _check_ready(store, task_id, now)
    number = task.rounds + 1
    usable_cells = cells_of_task(store, task)
    with_clients = store.clients.cells_with(task.terms.labels)
    cells = [cell for cell in usable_cells if cell.cell_id in with_clients]
    ranges = choose_blocks(store, task, cells, now)
    clients = store.clients.serials_with(task.terms.labels, ranges.keys())
    passed_over = clients_passed_over(store, task, number)
    reasons = {CandidateOutcome.BUSY: busy_clients(store, task), **passed_over.serials}
    drawn = _draw(store, clients, task.terms, reasons, np.random.default_rng([task.terms.seed, number]))
    window_s = task.terms.report_window_s
    assert task.model_version is not None, "a ready task has a model"
    model = store.models.get(task.serial, task.model_version)
    round_ = store.rounds.add(
        task.serial,
        number,
        terms_of_round(
            task.terms,
            model.size_bytes,
            number=number,
            elapsed_s=elapsed_at(task, now),
            upload_size_bytes=model.upload_size_bytes,
            download_size_bytes=model.download_size_bytes,
        ),
        model_version=task.model_version,
        clients=len(clients),
        asked=len(drawn.client_ids),
        opened_at=now,
        window_ends_at=now + timedelta(seconds=window_s) if window_s else None,
    )
    if task.state is TaskState.READY:
        task = move_task(store, task, TaskState.RUNNING, now, first_round_at=now)
        if task.terms.evaluate_initial_model:  # it cannot be replaced any more
            add_evaluation_jobs(store, task, 0, now)
    task = store.tasks.change(task, rounds=number)
    hold_blocks(store, task, round_.serial, ranges, now)
    store.rounds.add_cells(
        round_, [RoundCell(cell_id, taken.first, taken.count) for cell_id, taken in ranges.items()]
    )
    emit_round(store, round_, now)
    emit_cooldowns(store, round_, passed_over.cooldowns, now)
    if not window_s:
        return schedule_round(store, task, round_, drawn, now)
    asked = [CandidateOutcome.ASKED] * len(drawn.client_ids)
    known = [*zip(drawn.client_ids, drawn.cell_ids, asked, strict=True), *drawn.others]
    store.rounds.set_candidates(round_, [Candidate(place, *client) for place, client in enumerate(known)])
    return round_


def _draw(
    store: Store,
    clients: ClientsByCell,
    terms: TaskTerms,
    passed_over: Mapping[CandidateOutcome, Serials],
    rng: np.random.Generator,
) -> DrawnCandidates:
    """Draw ⌈K·C⌉ clients; for each that is passed over, another one. The first reason of a client counts."""
    places = draw_candidates(len(clients), terms.request_fraction, rng)
    reasons = list(passed_over)
    reason = np.full(len(clients), len(reasons))
    for number in reversed(range(len(reasons))):
        reason[np.isin(clients.serials, passed_over[reasons[number]])] = number
    may_be_drawn = reason == len(reasons)
    passed = places[~may_be_drawn[places]]
    if len(passed):
        may_be_drawn[places] = False
        others = rng.permutation(np.flatnonzero(may_be_drawn))[: len(passed)]
        places = np.concatenate([places[~np.isin(places, passed)], others])
    ids = store.clients.ids_of(clients.serials[np.concatenate([places, passed])])
    return DrawnCandidates(
        *_known(clients, places, ids),
        others=[
            DrawnClient(client_id, cell_id, outcome)
            for number, outcome in enumerate(reasons)
            for client_id, cell_id in zip(
                *_known(clients, passed[reason[passed] == number], ids)[1:], strict=True
            )
        ],
    )


def _known(
    clients: ClientsByCell, places: Positions, ids: Mapping[int, str]
) -> tuple[Serials, list[str], list[str]]:
    """Serials, ids and cells of the clients in these places; a client may have been removed just now."""
    there = places[np.array([serial in ids for serial in clients.serials[places].tolist()], dtype=np.bool_)]
    serials = clients.serials[there]
    cell_ids = [clients.cell_ids[place] for place in clients.in_cell[there].tolist()]
    return serials, [ids[serial] for serial in serials.tolist()], cell_ids


def end_report_window(store: Store, round_id: str, now: datetime) -> Round:
    """Select from the clients that have reported, unless this has been done."""
    task, round_ = lock_round(store, round_id)
    if round_.state is not RoundState.REQUESTING:
        return round_
    lock_candidates(store, task)
    serials = store.rounds.serials_of_candidates(round_.serial)
    drawn = store.rounds.candidates(round_.serial)
    asked = [client for client in drawn if client.outcome is CandidateOutcome.ASKED]
    enrolled = [client for client in asked if client.client_id in serials]
    candidates = DrawnCandidates(
        np.array([serials[client.client_id] for client in enrolled], dtype=np.int64),
        [client.client_id for client in enrolled],
        [client.cell_id for client in enrolled],
        others=[
            *(
                DrawnClient(client.client_id, client.cell_id, CandidateOutcome.NO_REPORT)
                for client in asked
                if client.client_id not in serials
            ),
            *(
                DrawnClient(client.client_id, client.cell_id, client.outcome)
                for client in drawn
                if client.outcome in PASSED_OVER
            ),
        ],
    )
    return schedule_round(store, task, round_, candidates, now)


def _check_ready(store: Store, task_id: str, now: datetime) -> Task:
    task = store.tasks.get(task_id, lock=True)
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    if task.state is TaskState.INITIALIZING:
        raise ModelNotReadyError(
            "The task has no initial model yet. Wait for a worker to create it, or upload one."
        )
    if open_round := store.rounds.open_of(task.serial):
        raise RoundOpenError(f"The task has an open round, {open_round.round_id!r}.")
    if awaits_evaluation(store, task):
        raise EvaluationPendingError(
            "The newest model is still being evaluated against the target accuracy. Try again later."
        )
    if (ending := task.ending_after(elapsed_at(task, now))) is not None:
        raise TaskOverError(f"No further round may start: {OUTCOME_DETAILS[ending]}")
    return task


_MAX_PAUSE_S = 60.0


def advance_task(store: Store, task_id: str, now: datetime) -> Round | None:
    """Open the next round of an ``auto_advance`` task, or finish the task; returns the new round.

    A task that finds too few free resource blocks waits for its turn.
    """
    task = store.tasks.get(task_id, lock=True)
    if task.state is not TaskState.RUNNING or store.rounds.open_of(task.serial):
        return None
    if not is_due(store, task, now) or finish_if_due(store, task, now):
        return None
    try:
        return open_round(store, task_id, now)
    except ResourceBlocksBusyError as error:
        wait_for_blocks(store, task_id, error, now)
        return None


def is_due(store: Store, task: Task, now: datetime) -> bool:
    """Whether a running task without an open round must be finished or can open its next round."""
    if awaits_evaluation(store, task):
        return False
    if task.ending_after(elapsed_at(task, now)) is not None:
        return True
    return task.terms.auto_advance and now >= _not_before(store, task.serial)


def _not_before(store: Store, task_serial: int) -> datetime:
    """The pause after failed rounds: one second for each consecutive failure."""
    last = store.rounds.last_of(task_serial)
    assert last is not None, "a running task has a round"
    assert last.ended_at is not None, "the last round has ended"
    failures = store.rounds.consecutive_failures(task_serial)
    return last.ended_at + timedelta(seconds=min(float(failures), _MAX_PAUSE_S))
