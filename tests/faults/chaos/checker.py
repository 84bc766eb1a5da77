"""Checks what must be true after a chaos test, and describes what is not.

The service's database is held against what the workload kept (``history``) and heard (``events``), and every
model is computed again from the updates that the clients sent.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Row, select

from services.aggregators import make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.contract.common import EventResponse
from services.domain.clipping import ClipTerms
from services.domain.rounds import Round, RoundState, SlotOutcome
from services.domain.tasks import TASK_TRANSITIONS, TaskTerms
from services.storage.database import Database
from services.storage.rounds import Rounds
from services.storage.tables import (
    clients,
    events,
    model_versions,
    resource_reports,
    rounds,
    slots,
    tasks,
    updates,
)
from tests.faults.chaos.history import History, SentUpdate
from tests.stateful.consistency import check_consistency

_ROUND_OVER = {f"round.{state}" for state in (RoundState.AGGREGATED, RoundState.FAILED, RoundState.CANCELLED)}


@dataclass(frozen=True)
class Evidence:
    """What a chaos test leaves behind."""

    database: Database
    history: History
    told: Sequence[EventResponse]
    """The events as somebody heard them."""
    models: Mapping[str, Path]
    """The file of every version of a model, by its digest."""
    overdue_s: float
    """How long a round may take beyond its deadline, and to be aggregated."""


def find_faults(evidence: Evidence) -> list[str]:
    """Everything that is wrong."""
    database, history = evidence.database, evidence.history
    with database.engine.connect() as connection:
        found = [
            *_lost_reports(connection, history),
            *_wrong_updates(connection, history),
            *_wrong_models(connection, history, evidence.models),
            *_wrong_events(connection, evidence.told),
            *_overdue_rounds(connection, evidence.overdue_s),
            *_endless_tasks(connection),
        ]
    try:
        check_consistency(database)
    except AssertionError as error:
        found.append(f"the database is not consistent: {error}")
    return found


def _lost_reports(connection: Connection, history: History) -> Iterator[str]:
    joined = select(clients.c.client_id, resource_reports.c.throughput_bps).join(
        resource_reports, resource_reports.c.client_serial == clients.c.serial
    )
    kept = {(row.client_id, row.throughput_bps) for row in connection.execute(joined)}
    for client_id, throughput_bps in history.reports.keys() - kept:
        yield f"the report of {client_id} with {throughput_bps:.0f} bit/s was acknowledged and is lost"


def _wrong_updates(connection: Connection, history: History) -> Iterator[str]:
    joined = select(rounds.c.round_id, updates).join(updates, updates.c.round_serial == rounds.c.serial)
    kept = {
        SentUpdate(row.round_id, row.client_id, row.digest, row.data_samples)
        for row in connection.execute(joined)
    }
    for update in history.updates - kept:
        yield f"the update of {update.client_id} for {update.round_id} was acknowledged and is lost"
    for update in kept - history.sent:
        yield f"there is an update of {update.client_id} for {update.round_id} that nobody sent"


def _wrong_models(connection: Connection, history: History, models: Mapping[str, Path]) -> Iterator[str]:
    digests = {
        (row.task_serial, row.version): row.digest for row in connection.execute(select(model_versions))
    }
    made: dict[tuple[int, int], str] = {}
    query = select(rounds, tasks.c.terms.label("task_terms")).join(
        tasks, tasks.c.serial == rounds.c.task_serial
    )
    for round_ in connection.execute(query.where(rounds.c.state == RoundState.AGGREGATED)):
        place = (round_.task_serial, round_.model_version + 1)
        if place in made:
            yield f"{made[place]} and {round_.round_id} were both aggregated into the same model"
        made[place] = round_.round_id
        before = models[digests[round_.task_serial, round_.model_version]]
        received = connection.execute(_received(round_)).all()
        terms: TaskTerms = round_.task_terms
        past = Rounds(connection).past_norms(cast("Round", round_))
        aggregated = aggregate_updates(
            before,
            [ReceivedUpdate(row.client_id, history.path_of(row.digest), row.reported) for row in received],
            make_aggregator(terms.aggregation, terms.aggregation_parameters),
            clipping=ClipTerms(terms.update_clip_factor, terms.max_update_norm, past),
        )
        left_out = {row.client_id for row in received if row.outcome is SlotOutcome.REJECTED}
        if aggregated.model is None or left_out != set(aggregated.record.outliers):
            yield f"{round_.round_id} leaves out {sorted(left_out)}, not {sorted(aggregated.record.outliers)}"
        elif hashlib.sha256(b"".join(aggregated.model.content())).hexdigest() != digests[place]:
            yield f"the model of {round_.round_id} is not that of the {len(received)} updates received"
    for task_serial, version in digests.keys() - made.keys():
        if version > 0:
            yield f"version {version} of the task of serial {task_serial} comes from no round"


def _received(round_: Row[Any]) -> Any:
    """The updates of a round, in the order in which they are averaged."""
    return (
        select(updates, slots.c.outcome, slots.c.data_samples.label("reported"))
        .join(
            slots,
            (slots.c.round_serial == updates.c.round_serial) & (slots.c.client_id == updates.c.client_id),
        )
        .where(updates.c.round_serial == round_.serial)
        .order_by(slots.c.order)
    )


def _wrong_events(connection: Connection, told: Sequence[EventResponse]) -> Iterator[str]:
    for before, after in pairwise([0, *(event.number for event in told)]):
        if after != before + 1:
            yield f"the stream of events went from {before} to {after}"
    kept = {row.number: row for row in connection.execute(select(events))}
    for event in told:
        row = kept.pop(event.number, None)
        if row is None or (row.kind, row.task_id, row.round_id) != (
            event.kind,
            event.task_id,
            event.round_id,
        ):
            yield f"the event {event.number}, {event.kind}, was told and is not kept"
    for number, row in kept.items():
        yield f"the event {number}, {row.kind}, was never told"


def _overdue_rounds(connection: Connection, overdue_s: float) -> Iterator[str]:
    for row, collected_s, aggregated_s in round_delays(connection):
        for what, delay_s in (("collecting", collected_s), ("aggregating", aggregated_s)):
            if delay_s is not None and delay_s > overdue_s:
                yield f"{row.round_id} was {what} for {delay_s:.0f} s longer than it should"


def round_delays(connection: Connection) -> Iterator[tuple[Row[Any], float | None, float | None]]:
    """Of each round: how long after its deadline collection ended, and how long it took to end after that."""
    moments: dict[str, dict[str, datetime]] = {}
    for row in connection.execute(select(events.c.round_id, events.c.kind, events.c.at)):
        if row.kind in _ROUND_OVER or row.kind == "round.aggregating":
            moments.setdefault(row.round_id, {})["over" if row.kind in _ROUND_OVER else "collected"] = row.at
    for round_ in connection.execute(select(rounds)):
        known = moments.get(round_.round_id, {})
        over = known.get("over")
        collected = known.get("collected", over)
        if over is None or collected is None:
            continue  # it has not ended: the check of the tasks says so
        deadline: datetime | None = round_.upload_deadline_at
        late = None if deadline is None else _seconds(collected - deadline)
        yield round_, late, _seconds(over - collected)


def _seconds(duration: timedelta) -> float:
    return max(duration.total_seconds(), 0.0)


def _endless_tasks(connection: Connection) -> Iterator[str]:
    for task in connection.execute(select(tasks)):
        if TASK_TRANSITIONS[task.state]:
            yield f"{task.task_id} ({task.name}) has not ended: it is {task.state}"
