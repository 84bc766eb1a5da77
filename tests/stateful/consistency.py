"""What must be true of everything in a database, whatever happened before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Table, func, select

from services.domain.jobs import JobKind, JobState, TrainingState
from services.domain.rounds import OPEN_STATES, ROUND_TRANSITIONS, RoundState, SlotOutcome
from services.domain.tasks import TASK_TRANSITIONS, TaskState
from services.storage.database import Database
from services.storage.tables import (
    event_counter,
    events,
    jobs,
    model_versions,
    rounds,
    slots,
    tasks,
    trainings,
    updates,
)

_S = TypeVar("_S", bound=StrEnum)

_UPLOADS_OVER = set(RoundState) - {RoundState.REQUESTING, RoundState.SCHEDULED, RoundState.COLLECTING}
_AGGREGATION_OVER = {RoundState.AGGREGATED, RoundState.FAILED}
_UNFINISHED = {JobState.WAITING, JobState.LEASED}


def check_consistency(database: Database, task_id: str | None = None) -> None:
    """Check all tasks, or one."""
    with database.engine.connect() as connection:
        check_event_numbers(connection)
        query = select(tasks) if task_id is None else select(tasks).where(tasks.c.task_id == task_id)
        for task in connection.execute(query).all():
            _check_task(connection, task)


def check_event_numbers(connection: Connection) -> None:
    """Events are numbered from 1 without gaps."""
    number, last = connection.execute(
        select(func.count(), func.max(events.c.number)).select_from(events)
    ).one()
    assert number == (last or 0)
    assert connection.execute(select(event_counter.c.last_number)).scalar_one() == number


def _check_task(connection: Connection, task: Row[Any]) -> None:
    told = connection.execute(
        select(events).where(events.c.task_id == task.task_id).order_by(events.c.number)
    ).all()
    _check_life("task", told, task.state, TaskState.INITIALIZING, TASK_TRANSITIONS)
    _check_models(connection, task, told)
    own_rounds = _of_task(connection, rounds, task)
    assert sorted(round_.number for round_ in own_rounds) == list(range(1, task.rounds + 1))
    assert sum(round_.state in OPEN_STATES for round_ in own_rounds) <= 1
    own_jobs = _of_task(connection, jobs, task)
    for round_ in own_rounds:
        told_of_round = [event for event in told if event.round_id == round_.round_id]
        _check_life("round", told_of_round, round_.state, RoundState.REQUESTING, ROUND_TRANSITIONS)
        _check_updates(connection, round_, told_of_round)
        _check_trainings(connection, round_, told_of_round)
        _check_aggregation(round_, own_jobs)
    for job in own_jobs:
        assert job.attempts <= job.max_attempts
        assert job.attempts <= job.token
    if task.state in (TaskState.CANCELLED, TaskState.FAILED):
        assert not any(job.state in _UNFINISHED for job in own_jobs), "work for a task that was given up"
        assert not any(round_.state in OPEN_STATES for round_ in own_rounds)


def _check_life(
    of: str, told: Sequence[Row[Any]], state: _S, first: _S, moves: Mapping[_S, frozenset[_S]]
) -> None:
    """Each state was told once, follows the one before it, and the last one told is the one it is in."""
    lived = [type(state)(event.kind.partition(".")[2]) for event in told if event.kind.startswith(f"{of}.")]
    assert lived, f"nothing was told of the {of}"
    assert lived[0] is first
    for before, after in pairwise(lived):
        assert after in moves[before], f"a {of} went from {before} to {after}"
    assert lived[-1] is state


def _check_models(connection: Connection, task: Row[Any], told: Sequence[Row[Any]]) -> None:
    versions = sorted(row.version for row in _of_task(connection, model_versions, task))
    assert versions == list(range(len(versions)))
    assert task.model_version == (versions[-1] if versions else None)
    made = Counter(event.data["version"] for event in told if event.kind == "model.created")
    assert sorted(made) == versions
    assert all(made[version] == 1 for version in versions if version > 0)


def _check_updates(connection: Connection, round_: Row[Any], told: Sequence[Row[Any]]) -> None:
    outcomes = {row.client_id: row.outcome for row in _of_round(connection, slots, round_)}
    received = {client_id for client_id, outcome in outcomes.items() if outcome is SlotOutcome.RECEIVED}
    assert round_.selected == len(outcomes)
    assert round_.received == len(received)
    kept = {row.client_id for row in _of_round(connection, updates, round_)}
    assert received <= kept
    left_out = kept - received
    assert all(outcomes[client_id] is SlotOutcome.REJECTED for client_id in left_out)
    assert not left_out or round_.state in _AGGREGATION_OVER
    told_received = Counter(event.client_id for event in told if event.kind == "update.received")
    assert told_received == Counter(kept)
    assert _told_rejected_after_all(told) == Counter(left_out)
    told_late = Counter(event.client_id for event in told if event.kind == "update.late")
    assert told_late == Counter(
        client_id for client_id, outcome in outcomes.items() if outcome is SlotOutcome.LATE
    )
    if round_.state in _UPLOADS_OVER:
        assert SlotOutcome.PENDING not in outcomes.values()


def _told_rejected_after_all(told: Sequence[Row[Any]]) -> Counter[str]:
    """Whose updates were rejected after they had been received: those left out of the aggregation."""
    received: set[str] = set()
    rejected: Counter[str] = Counter()
    for event in told:
        if event.kind == "update.received":
            received.add(event.client_id)
        elif event.kind == "update.rejected" and event.client_id in received:
            rejected[event.client_id] += 1
    return rejected


def _check_trainings(connection: Connection, round_: Row[Any], told: Sequence[Row[Any]]) -> None:
    """Each training was told of when it was asked for, and once more when it ended, if it has."""
    for training in _of_round(connection, trainings, round_):
        lived = [
            event.kind.removeprefix("training.")
            for event in told
            if event.kind.startswith("training.") and event.data["training_id"] == training.training_id
        ]
        ended = [] if training.state is TrainingState.WAITING else [training.state]
        assert lived == [TrainingState.WAITING, *ended]
        assert (training.digest is not None) == (training.state is TrainingState.DONE)


def _check_aggregation(round_: Row[Any], own_jobs: Sequence[Row[Any]]) -> None:
    states = [
        job.state
        for job in own_jobs
        if job.kind is JobKind.AGGREGATE_ROUND and job.round_serial == round_.serial
    ]
    if round_.state is RoundState.AGGREGATING:
        assert len(states) == 1
        assert states[0] in _UNFINISHED
    elif round_.state is RoundState.AGGREGATED:
        assert states == [JobState.DONE]
    elif round_.outcome == "AGGREGATION_FAILED":
        assert states == [JobState.FAILED]
    elif round_.state is RoundState.CANCELLED:
        assert states in ([], [JobState.CANCELLED])
    elif round_.outcome == "TOO_FEW_UPDATES":  # when it was closed, or when some were left out
        assert states in ([], [JobState.DONE])
    else:
        assert states == []


def _of_task(connection: Connection, table: Table, task: Row[Any]) -> Sequence[Row[Any]]:
    return connection.execute(select(table).where(table.c.task_serial == task.serial)).all()


def _of_round(connection: Connection, table: Table, round_: Row[Any]) -> Sequence[Row[Any]]:
    return connection.execute(select(table).where(table.c.round_serial == round_.serial)).all()
