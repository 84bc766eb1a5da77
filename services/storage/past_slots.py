"""Past slots of clients: how long they took, who did not deliver, and how often each was selected."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, true

from services.domain.past_slots import PAST_SLOTS, PastSlots, Undelivered
from services.domain.rounds import SlotOutcome
from services.domain.tasks import TaskState, TaskTerms
from services.storage.sql import Repository, Serials, numbers_table, with_values
from services.storage.tables import candidates, clients, rounds, slots, tasks

_NOT_DELIVERED = (SlotOutcome.REJECTED, SlotOutcome.MISSED, SlotOutcome.DECLINED)
"""A late update says that the estimate was wrong, not that its client fails to deliver."""


def _undelivered(of_clients: ColumnElement[bool]) -> Select[tuple[int, int, bool]]:
    """Slots of a task since the last delivered update of their client."""
    last_delivered = (
        with_values(
            select(slots.c.client_id, func.max(rounds.c.number).label("number")).join_from(
                rounds, slots, slots.c.round_serial == rounds.c.serial
            ),
            rounds.c.task_serial,
        )
        .where(slots.c.outcome == SlotOutcome.RECEIVED, of_clients)
        .group_by(slots.c.client_id)
        .subquery()
    )
    return (
        with_values(
            select(clients.c.serial, rounds.c.number, slots.c.outcome == SlotOutcome.DECLINED)
            .join_from(rounds, slots, slots.c.round_serial == rounds.c.serial)
            .join(clients, clients.c.client_id == slots.c.client_id)
            .outerjoin(last_delivered, last_delivered.c.client_id == slots.c.client_id),
            rounds.c.task_serial,
        )
        .where(
            slots.c.outcome.in_(_NOT_DELIVERED),
            or_(last_delivered.c.number.is_(None), rounds.c.number > last_delivered.c.number),
            of_clients,
        )
        .order_by(clients.c.serial, rounds.c.number)
    )


_UNDELIVERED = _undelivered(true())
_UNDELIVERED_BY = _undelivered(slots.c.client_id.in_(bindparam("client_ids", expanding=True)))
_SELECTED = (
    with_values(
        select(clients.c.serial)
        .join_from(rounds, slots, slots.c.round_serial == rounds.c.serial)
        .join(clients, clients.c.client_id == slots.c.client_id),
        rounds.c.task_serial,
    )
    .group_by(clients.c.serial)
    .having(func.count() >= bindparam("least"))
)
_PARTICIPATION = (
    select(
        slots.c.client_id,
        tasks.c.serial,
        tasks.c.task_id,
        tasks.c.terms,
        tasks.c.rounds,
        func.count(),
        func.count().filter(slots.c.outcome == SlotOutcome.RECEIVED),
    )
    .join_from(slots, rounds, rounds.c.serial == slots.c.round_serial)
    .join(tasks, tasks.c.serial == rounds.c.task_serial)
    .where(
        slots.c.client_id.in_(bindparam("client_ids", expanding=True)),
        tasks.c.state == TaskState.RUNNING,
    )
    .group_by(slots.c.client_id, tasks.c.serial)
    .order_by(tasks.c.serial)
)


class Participation(NamedTuple):
    """How often a running task has selected a client."""

    task_serial: int
    task_id: str
    terms: TaskTerms
    rounds: int
    """Of the task."""
    selected: int
    received: int


class SlotHistory(Repository):
    """The past slots in a database. Removed clients are omitted."""

    def measured(self, task_serial: int, client_serials: Serials) -> PastSlots:
        """The newest slots of these clients in a task that have actual times."""
        table, serial = numbers_table(self._connection, client_serials)
        newest = (
            select(
                clients.c.serial.label("client_serial"),
                (
                    func.row_number().over(partition_by=clients.c.serial, order_by=rounds.c.number.desc()) - 1
                ).label("age"),
                slots.c.actual_update_s,
                slots.c.update_ns,
                candidates.c.compute_samples_per_s,
                candidates.c.expected_compute_samples_per_s,
                slots.c.actual_upload_s,
                slots.c.upload_ns,
                candidates.c.throughput_bps,
                candidates.c.expected_throughput_bps,
            )
            .join_from(table, clients, clients.c.serial == serial)
            .join(slots, slots.c.client_id == clients.c.client_id)
            .join(
                candidates,
                and_(
                    candidates.c.round_serial == slots.c.round_serial,
                    candidates.c.client_id == slots.c.client_id,
                ),
            )
            .join(rounds, rounds.c.serial == slots.c.round_serial)
            .where(
                rounds.c.task_serial == task_serial,
                or_(slots.c.actual_update_s.is_not(None), slots.c.actual_upload_s.is_not(None)),
            )
            .subquery()
        )
        rows = self._connection.execute(select(newest).where(newest.c.age < PAST_SLOTS)).all()
        places = {client: place for place, client in enumerate(client_serials.tolist())}
        return PastSlots.measured(
            [places[row[0]] for row in rows],
            [row[1] for row in rows],
            [row[2:6] for row in rows],
            [row[6:10] for row in rows],
        )

    def undelivered(self, task_serial: int, client_ids: Sequence[str] | None = None) -> Undelivered:
        """The slots of a task since each client's last delivered update; of some clients, or of all."""
        of_task: dict[str, object] = {"task_serial": task_serial}
        query = _UNDELIVERED
        if client_ids is not None:
            query = _UNDELIVERED_BY
            of_task["client_ids"] = client_ids
        rows = self._connection.execute(query, of_task)
        columns = np.array([tuple(row) for row in rows], dtype=np.int64)
        client, number, declined = columns.reshape(-1, 3).T
        return Undelivered(client, number, declined.astype(np.bool_))

    def selected_at_least(self, task_serial: int, least: int) -> Serials:
        """The serials of clients that a task has selected in at least so many rounds."""
        found = self._connection.execute(_SELECTED, {"task_serial": task_serial, "least": least})
        return np.array(found.scalars().all(), dtype=np.int64)

    def participation(self, client_ids: Sequence[str]) -> Mapping[str, Sequence[Participation]]:
        """In which running tasks these clients have been selected, and how often."""
        found: defaultdict[str, list[Participation]] = defaultdict(list)
        for client_id, *values in self._connection.execute(_PARTICIPATION, {"client_ids": client_ids}):
            found[client_id].append(Participation(*values))
        return found
