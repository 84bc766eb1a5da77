"""How tasks went, round by round: what plots and tables of many rounds need, and no more, in few queries."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from services.domain.rounds import RoundState
from services.storage.tables import evaluations, rounds

_OF_TASKS = rounds.c.task_serial.in_(bindparam("serials", expanding=True))
_in_order: dict[str, Any] = {"partition_by": rounds.c.task_serial, "order_by": rounds.c.number}
_timed = (
    select(
        rounds.c.task_serial,
        rounds.c.round_id,
        rounds.c.number,
        rounds.c.state,
        rounds.c.outcome,
        rounds.c.asked,
        rounds.c.selected,
        rounds.c.received,
        rounds.c.ended_at,
        rounds.c.model_version,
        func.count(rounds.c.duration_s).over(**_in_order).label("timed_rounds"),
        func.coalesce(func.sum(rounds.c.duration_s).over(**_in_order), 0.0).label("durations_s"),
    )
    .where(_OF_TASKS)
    .subquery()
)
_ALL = (
    select(
        _timed.c.task_serial,
        *(one for one in _timed.c if one.name not in {"task_serial", "model_version"}),
        evaluations.c.accuracy,
        evaluations.c.loss,
    )
    .outerjoin_from(
        _timed,
        evaluations,
        (_timed.c.state == RoundState.AGGREGATED)
        & (evaluations.c.task_serial == _timed.c.task_serial)
        & (evaluations.c.version == _timed.c.model_version + 1),
    )
    .order_by(_timed.c.task_serial, _timed.c.number)
)
_SOME = _ALL.where(_timed.c.number.in_(bindparam("numbers", expanding=True)))
_FIRST = (
    select(rounds.c.task_serial, func.min(rounds.c.number).label("number"))
    .join_from(
        rounds,
        evaluations,
        (evaluations.c.task_serial == rounds.c.task_serial)
        & (evaluations.c.version == rounds.c.model_version + 1),
    )
    .where(_OF_TASKS, rounds.c.state == RoundState.AGGREGATED, evaluations.c.accuracy >= bindparam("least"))
    .group_by(rounds.c.task_serial)
)


class RoundProgress(NamedTuple):
    """A round, and how good the model was that it made."""

    round_id: str
    number: int
    state: RoundState
    outcome: str | None
    asked: int
    selected: int
    received: int
    ended_at: datetime | None
    timed_rounds: int
    """How many rounds up to this one have a duration."""
    durations_s: float
    """Their sum."""
    accuracy: float | None
    """None if it made no model, or that is not evaluated."""
    loss: float | None


class Progress:
    """The progress of the tasks in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of_tasks(self, task_serials: Sequence[int]) -> Mapping[int, Sequence[RoundProgress]]:
        """The rounds of each of these tasks that has any, oldest first, by the task's serial."""
        return _by_task(self._connection.execute(_ALL, {"serials": task_serials}).all())

    def rounds(
        self, task_serials: Sequence[int], numbers: Collection[int]
    ) -> Mapping[int, Sequence[RoundProgress]]:
        """The same, of the rounds with these numbers only."""
        given = {"serials": task_serials, "numbers": list(numbers)}
        return _by_task(self._connection.execute(_SOME, given).all())

    def first_with(self, task_serials: Sequence[int], accuracy: float) -> dict[int, int]:
        """The number of the first round of each task that made a model at least so good, if any did."""
        rows = self._connection.execute(_FIRST, {"serials": task_serials, "least": accuracy})
        return {row.task_serial: row.number for row in rows}


def _by_task(rows: Iterable[Sequence[Any]]) -> dict[int, list[RoundProgress]]:
    found: defaultdict[int, list[RoundProgress]] = defaultdict(list)
    for serial, *values in rows:
        found[serial].append(RoundProgress(*values))
    return dict(found)
