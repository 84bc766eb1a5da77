"""State transitions of tasks and rounds: each is checked against the table of transitions and emits an event.

The row of a task is the lock for everything that belongs to the task. Every transaction that changes one of
these takes that lock first, so transactions cannot deadlock.
"""

from datetime import datetime
from typing import Unpack

from services.domain.jobs import JobKind, Training, TrainingState
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import (
    BLOCK_HOLDING_STATES,
    ROUND_TRANSITIONS,
    Round,
    RoundChange,
    RoundState,
    SlotOutcome,
)
from services.domain.tasks import (
    OUTCOME_DETAILS,
    PARTS,
    TASK_TRANSITIONS,
    Clock,
    Task,
    TaskChange,
    TaskOutcome,
    TaskState,
)
from services.storage.database import Store


def move_task(store: Store, task: Task, to: TaskState, now: datetime, **values: Unpack[TaskChange]) -> Task:
    """Change the state of a locked task, and set further fields."""
    assert to in TASK_TRANSITIONS[task.state], f"a task cannot go from {task.state} to {to}"
    values["state"] = to
    if not TASK_TRANSITIONS[to]:
        values["ended_at"] = now
        store.waiting_tasks.remove(task.serial)
    moved = store.tasks.change(task, **values)
    data = {} if moved.outcome is None else {"outcome": moved.outcome}
    store.events.record(f"task.{to.value}", now, task_id=task.task_id, **data)
    return moved


def move_round(
    store: Store, round_: Round, to: RoundState, now: datetime, **values: Unpack[RoundChange]
) -> Round:
    """Change the state of a locked round, and set further fields."""
    assert to in ROUND_TRANSITIONS[round_.state], f"a round cannot go from {round_.state} to {to}"
    values["state"] = to
    if to not in BLOCK_HOLDING_STATES:
        store.allocations.release(round_.serial, now)
    if not ROUND_TRANSITIONS[to]:
        values["ended_at"] = now
    moved = store.rounds.change(round_, **values)
    emit_round(store, moved, now)
    return moved


def lock_round(store: Store, round_id: str) -> tuple[Task, Round]:
    """Lock the task of a round until the transaction ends; returns both."""
    task = store.tasks.lock_of_round(round_id)
    return task, store.rounds.get(round_id)


def emit_round(store: Store, round_: Round, now: datetime) -> None:
    """Emit the state of a round."""
    data = {} if round_.outcome is None else {"outcome": round_.outcome}
    store.events.record(
        f"round.{round_.state.value}",
        now,
        task_id=round_.task_id,
        round_id=round_.round_id,
        number=round_.number,
        selected=round_.selected,
        received=round_.received,
        **data,
    )


def emit_training(
    store: Store, task_id: str, training: Training, state: TrainingState, now: datetime
) -> None:
    """Emit the state of a hosted training."""
    store.events.record(
        f"training.{state.value}",
        now,
        task_id=task_id,
        round_id=training.round_id,
        client_id=training.client_id,
        training_id=training.training_id,
    )


def end_round(
    store: Store,
    task: Task,
    round_: Round,
    to: RoundState,
    now: datetime,
    *,
    outcome: str | None = None,
) -> Round:
    """End a round as aggregated or failed, and finish the task if no further round fits."""
    started_at = round_.started_at or now
    if task.terms.clock is Clock.WALL:
        duration_s = (now - started_at).total_seconds()
        elapsed_s = elapsed_at(task, now)
    else:
        slots = store.rounds.slots(round_.serial)
        ends_s = [slot.elapsed_s for slot in slots if slot.elapsed_s is not None]
        if round_.latest_ns is not None and any(slot.outcome is SlotOutcome.REFUSED for slot in slots):
            ends_s.append(to_seconds(round_.latest_ns))
        duration_s = max(ends_s, default=0.0) + round_.terms.aggregation_s
        # Without a known time of an outcome, a round has its full length: time has to pass.
        is_complete = bool(ends_s) and all(slot.ended_in_time for slot in slots)
        elapsed_s = task.elapsed_s + round_.terms.simulated_cost_s(duration_s, is_complete=is_complete)
    round_ = move_round(
        store,
        round_,
        to,
        now,
        started_at=started_at,
        outcome=outcome,
        duration_s=duration_s,
        task_elapsed_s=elapsed_s,
    )
    task = store.tasks.change(task, elapsed_s=elapsed_s)
    finish_if_due(store, task, now)
    return round_


def stop_collection(store: Store, round_: Round, now: datetime) -> None:
    """Settle the pending slots of a round, and cancel its hosted trainings and jobs."""
    store.rounds.settle_slots(round_.serial)
    for training in store.trainings.cancel(round_, now):
        emit_training(store, round_.task_id, training, TrainingState.CANCELLED, now)
    store.jobs.cancel(round_serial=round_.serial)


def cancel_open_round(store: Store, task: Task, now: datetime) -> None:
    """Cancel the open round of a task that ends."""
    if round_ := store.rounds.open_of(task.serial):
        stop_collection(store, round_, now)
        move_round(store, round_, RoundState.CANCELLED, now, task_elapsed_s=elapsed_at(task, now))


def finish_if_due(store: Store, task: Task, now: datetime) -> bool:
    """Finish a running task without an open round when no further round may start."""
    outcome = task.ending_after(elapsed_at(task, now))
    if outcome is None:
        return False
    finish_task(store, task, outcome, now)
    return True


def finish_task(store: Store, task: Task, outcome: TaskOutcome, now: datetime) -> Task:
    """Finish a task that has no open round."""
    return move_task(store, task, TaskState.FINISHED, now, outcome=outcome, detail=OUTCOME_DETAILS[outcome])


def elapsed_at(task: Task, now: datetime) -> float:
    """The elapsed time of a task: by the wall clock, or the sum of its simulated rounds."""
    if task.terms.clock is Clock.SIMULATED or task.first_round_at is None:
        return task.elapsed_s
    return max((now - task.first_round_at).total_seconds(), 0.0)  # clocks of processes differ slightly


def add_evaluation_jobs(store: Store, task: Task, version: int, now: datetime) -> None:
    """Add the jobs that measure a model version, one for each part of the validation data."""
    for part in range(PARTS):
        subject = {"task_id": task.task_id, "version": str(version), "part": str(part)}
        store.jobs.add(JobKind.EVALUATE_MODEL, subject, task_serial=task.serial, now=now)


def awaits_evaluation(store: Store, task: Task) -> bool:
    """Whether the task has a target accuracy and its newest model is not evaluated yet."""
    if not task.terms.needs_evaluation or not task.model_version:
        return False
    return store.models.evaluation(task.serial, task.model_version) is None
