"""Every change of state of a task or a round: allowed by the table of moves, and told as an event.

The row of a task is the lock for all that is part of it. Whoever changes something takes it first, so no two
transactions wait for each other.
"""

from datetime import datetime

from services.domain.rounds import ROUND_MOVES, Round, RoundState
from services.domain.tasks import TASK_MOVES, Task, TaskState
from services.domain.trainings import Training, TrainingState
from services.protocol.ports import Store


def move_task(
    store: Store, task: Task, to: TaskState, now: datetime, *, outcome: str | None = None, **values: object
) -> Task:
    """Put a task that this transaction has locked into another state."""
    assert to in TASK_MOVES[task.state], f"a task cannot go from {task.state} to {to}"
    ended_at = now if not TASK_MOVES[to] else None
    moved = store.tasks.change(task, state=to, ended_at=ended_at, outcome=outcome, **values)
    told = {} if outcome is None else {"outcome": outcome}
    store.events.record(f"task.{to.value}", now, task_id=task.task_id, **told)
    return moved


def move_round(
    store: Store,
    round_: Round,
    to: RoundState,
    now: datetime,
    *,
    outcome: str | None = None,
    **values: object,
) -> Round:
    """Put a round that this transaction has locked into another state."""
    assert to in ROUND_MOVES[round_.state], f"a round cannot go from {round_.state} to {to}"
    ended_at = now if not ROUND_MOVES[to] else None
    moved = store.rounds.change(round_, state=to, ended_at=ended_at, outcome=outcome, **values)
    tell_round(store, moved, now)
    return moved


def lock_round(store: Store, round_id: str) -> tuple[Task, Round]:
    """A round and its task, which nobody else changes until this transaction ends."""
    task = store.tasks.lock_of_round(round_id)
    return task, store.rounds.get(round_id)


def tell_round(store: Store, round_: Round, now: datetime) -> None:
    """Record the state of a round as an event."""
    told = {} if round_.outcome is None else {"outcome": round_.outcome}
    store.events.record(
        f"round.{round_.state.value}",
        now,
        task_id=round_.task_id,
        round_id=round_.round_id,
        number=round_.number,
        selected=round_.selected,
        received=round_.received,
        **told,
    )


def tell_training(
    store: Store, task_id: str, training: Training, state: TrainingState, now: datetime
) -> None:
    """Record the state of a hosted training as an event."""
    store.events.record(
        f"training.{state.value}",
        now,
        task_id=task_id,
        round_id=training.round_id,
        client_id=training.client_id,
        training_id=training.training_id,
    )
