"""The end of a round: what it cost of the task's time, and whether the task is over with it."""

from datetime import datetime

from services.domain.rounds import Round, RoundState
from services.domain.tasks import Clock, Task, TaskState
from services.domain.trainings import TrainingState
from services.protocol.moves import move_round, move_task, tell_training
from services.protocol.ports import Store


def end_round(
    store: Store,
    task: Task,
    round_: Round,
    to: RoundState,
    now: datetime,
    *,
    outcome: str | None = None,
    **values: object,
) -> Round:
    """End a round as aggregated or failed, and the task too if no further round fits."""
    started_at = round_.started_at or now
    if task.terms.clock is Clock.WALL:
        duration_s = (now - started_at).total_seconds()
    else:
        ends_s = [slot.elapsed_s for slot in store.rounds.slots(round_.serial) if slot.elapsed_s is not None]
        duration_s = max(ends_s, default=0.0) + task.terms.aggregation_s
    round_ = move_round(store, round_, to, now, outcome=outcome, duration_s=duration_s, **values)
    # A simulated round costs all of its time, whenever its last upload came: clients wait for the next one.
    cost_s = task.terms.round_deadline_s if task.terms.has_deadline else duration_s
    by_the_wall = task.terms.clock is Clock.WALL
    task = store.tasks.change(
        task, elapsed_s=elapsed_at(task, now) if by_the_wall else task.elapsed_s + cost_s
    )
    finish_if_out_of_time(store, task, now)
    return round_


def stop_collection(store: Store, round_: Round, now: datetime) -> None:
    """Expect nothing more from a round's clients, nor from those who train in their place."""
    store.rounds.settle_slots(round_.serial)
    for training in store.trainings.cancel(round_, now):
        tell_training(store, round_.task_id, training, TrainingState.CANCELLED, now)
    store.jobs.cancel(round_serial=round_.serial)


def cancel_open_round(store: Store, task: Task, now: datetime) -> None:
    """End the round that is under way, if there is one: its task ends."""
    if round_ := store.rounds.open_of(task.serial):
        stop_collection(store, round_, now)
        move_round(store, round_, RoundState.CANCELLED, now)


def finish_if_out_of_time(store: Store, task: Task, now: datetime) -> bool:
    """Finish a running task without an open round when it is out of time."""
    if not is_out_of_time(task, now):
        return False
    move_task(store, task, TaskState.FINISHED, now, outcome="The final deadline leaves no time for a round.")
    return True


def is_out_of_time(task: Task, now: datetime) -> bool:
    """Whether no further round would end by the final deadline."""
    return not task.fits_another_round(elapsed_at(task, now))


def elapsed_at(task: Task, now: datetime) -> float:
    """How much of the task's time has passed: by the wall clock, or what its rounds have cost."""
    if task.terms.clock is Clock.SIMULATED or task.first_round_at is None:
        return task.elapsed_s
    return max((now - task.first_round_at).total_seconds(), 0.0)  # clocks agree to a moment only


def awaits_evaluation(store: Store, task: Task) -> bool:
    """Whether the newest model may have reached the target accuracy, and nobody knows yet."""
    if task.terms.target_accuracy is None or not task.model_version:
        return False
    return store.models.evaluation(task.serial, task.model_version) is None
