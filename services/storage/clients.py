"""The enrolled clients, their labels, and the draw of some of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Float, Select, String, bindparam, cast, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from services.domain.rounds import SlotOutcome
from services.errors import ClientExistsError, ClientNotFoundError
from services.storage.rows import Page, Paging, count, numbers_table
from services.storage.tables import client_labels, clients, slots

_BATCH = 1000
_SERIALS_OF = select(clients.c.client_id, clients.c.serial).where(
    clients.c.client_id.in_(bindparam("client_ids", expanding=True))
)


@dataclass(frozen=True)
class Client:
    """An enrolled client."""

    serial: int
    client_id: str
    enrolled_at: datetime
    labels: Mapping[str, str]


@dataclass(frozen=True)
class TrackRecord:
    """How a client did in its slots, and by what factor it took longer than its reports promised."""

    slots: int = 0
    received: int = 0
    late: int = 0
    rejected: int = 0
    missed: int = 0
    update_ratio: float | None = None
    upload_ratio: float | None = None


def _padded(client_ids: Sequence[str]) -> list[str]:
    """As many as a power of two, the last one repeated: each number of them is a statement to be prepared."""
    missing = (1 << (len(client_ids) - 1).bit_length()) - len(client_ids)
    return [*client_ids, *[client_ids[-1]] * missing]


class Clients:
    """The clients in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, labels_by_id: Mapping[str, Mapping[str, str]], now: datetime) -> dict[str, int]:
        """Enrol all of these, or none if one of them is enrolled already; their serials."""
        if known := self.serials_of(list(labels_by_id)):
            raise ClientExistsError(f"The client {next(iter(known))!r} is enrolled already.")
        rows = [{"client_id": client_id, "enrolled_at": now} for client_id in labels_by_id]
        try:
            self._connection.execute(insert(clients), rows)
        except IntegrityError as error:  # enrolled by someone else a moment ago
            raise ClientExistsError("One of the clients is enrolled already.") from error
        serials = self.serials_of(list(labels_by_id))
        labels = [
            {"client_serial": serials[client_id], "name": name, "value": value}
            for client_id, own in labels_by_id.items()
            for name, value in own.items()
        ]
        if labels:
            self._connection.execute(insert(client_labels), labels)
        return serials

    def get(self, client_id: str) -> Client:
        """One client."""
        found = self._with_labels(select(clients).where(clients.c.client_id == client_id))
        if not found:
            raise ClientNotFoundError(client_id)
        return found[0]

    def page(self, paging: Paging, labels: Mapping[str, str]) -> Page[Client]:
        """The clients with these labels, in the order of their enrolment."""
        query = _labelled(select(clients), labels)
        return Page(
            self._with_labels(paging.of(query.order_by(clients.c.serial))), count(self._connection, query)
        )

    def remove(self, client_id: str) -> None:
        """Forget a client, its keys and its reports. The record of past rounds keeps its id."""
        done = self._connection.execute(delete(clients).where(clients.c.client_id == client_id))
        if not done.rowcount:
            raise ClientNotFoundError(client_id)

    def serials_of(self, client_ids: Sequence[str]) -> dict[str, int]:
        """The serials of those that are enrolled."""
        found: dict[str, int] = {}
        for start in range(0, len(client_ids), _BATCH):
            some = {"client_ids": _padded(client_ids[start : start + _BATCH])}
            found.update((row.client_id, row.serial) for row in self._connection.execute(_SERIALS_OF, some))
        return found

    def serials_with(self, labels: Mapping[str, str]) -> npt.NDArray[np.int64]:
        """The serials of all clients with these labels, in the order of enrolment.

        They come as one text and go into one array: there may be a million, and no row is ever an object.
        """
        all_of_them = func.aggregate_strings(cast(clients.c.serial, String), ",")
        joined = self._connection.execute(_labelled(select(all_of_them), labels)).scalar_one()
        return np.sort(np.fromstring(joined or "", dtype=np.int64, sep=","))

    def ids_of(self, serials: npt.NDArray[np.int64]) -> dict[int, str]:
        """The ids of these clients by their serials; one may have been removed a moment ago."""
        _, number = numbers_table(self._connection, serials)
        query = select(clients.c.serial, clients.c.client_id).where(clients.c.serial.in_(select(number)))
        return {serial: client_id for serial, client_id in self._connection.execute(query)}  # noqa: C416

    def track_records(self, client_ids: Sequence[str]) -> dict[str, TrackRecord]:
        """How each of these did so far."""
        second_ns = 1e9
        outcome_counts = [
            func.count().filter(slots.c.outcome == outcome).label(outcome.value)
            for outcome in SlotOutcome
            if outcome is not SlotOutcome.PENDING
        ]
        query = (
            select(
                slots.c.client_id,
                func.count().label("slots"),
                *outcome_counts,
                func.avg(slots.c.actual_update_s / (cast(slots.c.update_ns, Float) / second_ns))
                .filter(slots.c.update_ns > 0)
                .label("update_ratio"),
                func.avg(slots.c.actual_upload_s / (cast(slots.c.upload_ns, Float) / second_ns))
                .filter(slots.c.upload_ns > 0)
                .label("upload_ratio"),
            )
            .where(slots.c.client_id.in_(client_ids))
            .group_by(slots.c.client_id)
        )
        records: defaultdict[str, TrackRecord] = defaultdict(TrackRecord)
        for client_id, *values in self._connection.execute(query):
            records[client_id] = TrackRecord(*values)
        return records

    def _with_labels(self, query: Select[Any]) -> list[Client]:
        rows = self._connection.execute(query).all()
        labels: defaultdict[int, dict[str, str]] = defaultdict(dict)
        serials = [row.serial for row in rows]
        of_these = select(client_labels).where(client_labels.c.client_serial.in_(serials))
        for row in self._connection.execute(of_these.order_by(client_labels.c.name)):
            labels[row.client_serial][row.name] = row.value
        return [Client(row.serial, row.client_id, row.enrolled_at, labels[row.serial]) for row in rows]


def _labelled(query: Select[Any], labels: Mapping[str, str]) -> Select[Any]:
    for name, value in labels.items():
        query = query.where(
            clients.c.serial.in_(
                select(client_labels.c.client_serial).where(
                    client_labels.c.name == name, client_labels.c.value == value
                )
            )
        )
    return query
