"""The enrolled clients, their labels and their API keys."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    Select,
    String,
    bindparam,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from services.access import ApiKey
from services.domain.cells import DEFAULT_CELL
from services.domain.rounds import SlotOutcome
from services.errors import ClientExistsError, ClientNotFoundError, KeyNotFoundError
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    as_dataclass,
    change_where,
    count_rows,
    numbers_table,
    with_values,
)
from services.storage.tables import api_keys, candidates, cells, client_labels, clients, slots

_BATCH = 1000
_SERIALS_OF = select(clients.c.client_id, clients.c.serial).where(
    clients.c.client_id.in_(bindparam("client_ids", expanding=True))
)
_CELLS_OF = select(clients.c.client_id, clients.c.cell_id).where(
    clients.c.client_id.in_(bindparam("client_ids", expanding=True))
)
_SERIAL_RANGE = select(func.min(clients.c.serial), func.max(clients.c.serial))
_MOVE = change_where(clients, clients.c.serial)


@dataclass(frozen=True)
class Client:
    """An enrolled client."""

    serial: int
    client_id: str
    enrolled_at: datetime
    cell_id: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class ClientsByCell:
    """Serials of clients in ascending order, and the cell of each as a place in ``cell_ids``."""

    cell_ids: Sequence[str]
    serials: npt.NDArray[np.int64]
    in_cell: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.serials)

    def without(self, serials: npt.NDArray[np.int64]) -> "ClientsByCell":
        """The others."""
        others = np.isin(self.serials, serials, invert=True)
        return ClientsByCell(self.cell_ids, self.serials[others], self.in_cell[others])


@dataclass(frozen=True)
class TrackRecord:
    """Outcomes of a client's slots, and the ratio of actual times to those that follow from its reports."""

    slots: int = 0
    received: int = 0
    late: int = 0
    rejected: int = 0
    missed: int = 0
    declined: int = 0
    refused: int = 0
    update_ratio: float | None = None
    """The mean."""
    upload_ratio: float | None = None
    update_spread: float | None = None
    """The standard deviation."""
    upload_spread: float | None = None


def _padded(client_ids: Sequence[str]) -> list[str]:
    """Pad to a power of two with the last id: each list length is a separate prepared statement."""
    missing = (1 << (len(client_ids) - 1).bit_length()) - len(client_ids)
    return [*client_ids, *[client_ids[-1]] * missing]


class Clients(Repository):
    """The clients in a database."""

    def add(
        self,
        labels_by_id: Mapping[str, Mapping[str, str]],
        now: datetime,
        cell_ids: Mapping[str, str] | None = None,
    ) -> dict[str, int]:
        """Enrol all clients, or none if one of them is already enrolled; returns their serials.

        Clients without an entry in ``cell_ids`` are in the default cell.
        """
        if known := self.serials_of(list(labels_by_id)):
            raise ClientExistsError(f"The client {next(iter(known))!r} is already enrolled.")
        in_cell = cell_ids or {}
        rows = [
            {"client_id": client_id, "enrolled_at": now, "cell_id": in_cell.get(client_id, DEFAULT_CELL)}
            for client_id in labels_by_id
        ]
        try:
            self._connection.execute(insert(clients), rows)
        except IntegrityError as error:  # enrolled by a concurrent transaction
            raise ClientExistsError("One of the clients is already enrolled.") from error
        serials = self.serials_of(list(labels_by_id))
        self._add_labels({serials[client_id]: own for client_id, own in labels_by_id.items()})
        return serials

    def change(
        self, client_id: str, *, cell_id: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Client:
        """Put a client into another cell, give it other labels; what is None stays."""
        serial = self.lock(client_id)
        if cell_id is not None:
            self.move({serial: cell_id})
        if labels is not None:
            self._connection.execute(delete(client_labels).where(client_labels.c.client_serial == serial))
            self._add_labels({serial: labels})
        return self.get(client_id)

    def move(self, cell_ids: Mapping[int, str]) -> None:
        """Put clients, given by their serials, into other cells.

        It waits until rounds that are being opened in the cells that they leave are open: else a round in
        another cell would not see that they are busy.
        """
        _, number = numbers_table(self._connection, np.array(list(cell_ids), dtype=np.int64))
        query = select(clients.c.serial, clients.c.cell_id).where(clients.c.serial.in_(select(number)))
        found = self._connection.execute(query.order_by(clients.c.serial).with_for_update(key_share=True))
        moved = [(serial, cell_id) for serial, cell_id in found if cell_ids[serial] != cell_id]
        if not moved:
            return
        left = select(cells.c.cell_id).where(cells.c.cell_id.in_({cell_id for _, cell_id in moved}))
        self._connection.execute(left.order_by(cells.c.cell_id).with_for_update(read=True))
        rows = [{"of_serial": serial, "cell_id": cell_ids[serial]} for serial, _ in moved]
        self._connection.execute(_MOVE, rows)

    def get(self, client_id: str) -> Client:
        """One client."""
        found = self._with_labels(select(clients).where(clients.c.client_id == client_id))
        if not found:
            raise ClientNotFoundError(client_id)
        return found[0]

    def lock(self, client_id: str) -> int:
        """Lock a client until the transaction ends, so that its keys do not change; returns its serial."""
        query = select(clients.c.serial).where(clients.c.client_id == client_id)
        row = self._connection.execute(query.with_for_update(key_share=True)).one_or_none()
        if row is None:
            raise ClientNotFoundError(client_id)
        return int(row.serial)

    def page(self, paging: Paging, labels: Mapping[str, str], cell_id: str | None = None) -> Page[Client]:
        """The clients with these labels, of one cell or of all, in the order of their enrolment."""
        query = _labelled(select(clients), labels)
        if cell_id is not None:
            query = query.where(clients.c.cell_id == cell_id)
        return Page(
            self._with_labels(paging.of(query.order_by(clients.c.serial))),
            count_rows(self._connection, query),
        )

    def remove(self, client_id: str) -> None:
        """Delete a client, its keys and its reports. Past rounds keep its id."""
        done = self._connection.execute(delete(clients).where(clients.c.client_id == client_id))
        if not done.rowcount:
            raise ClientNotFoundError(client_id)

    def serials_of(self, client_ids: Sequence[str]) -> dict[str, int]:
        """The serials of these clients, without those that are not enrolled."""
        found: dict[str, int] = {}
        for start in range(0, len(client_ids), _BATCH):
            some = {"client_ids": _padded(client_ids[start : start + _BATCH])}
            found.update((row.client_id, row.serial) for row in self._connection.execute(_SERIALS_OF, some))
        return found

    def cells_of(self, client_ids: Sequence[str]) -> dict[str, str]:
        """The cells of those that are enrolled."""
        found: dict[str, str] = {}
        for start in range(0, len(client_ids), _BATCH):
            some = {"client_ids": _padded(client_ids[start : start + _BATCH])}
            found.update((row.client_id, row.cell_id) for row in self._connection.execute(_CELLS_OF, some))
        return found

    def cells_with(self, labels: Mapping[str, str]) -> set[str]:
        """The cells in which there are clients with these labels."""
        there = _labelled(select(clients.c.serial).where(clients.c.cell_id == cells.c.cell_id), labels)
        return set(self._connection.execute(select(cells.c.cell_id).where(there.exists())).scalars())

    def serials_with(
        self, labels: Mapping[str, str], cell_ids: Collection[str] | None = None
    ) -> ClientsByCell:
        """All clients with these labels, of these cells or of all, in the order of enrolment.

        The database returns one string per cell, which becomes an array: a million row objects would be slow.
        """
        joined = func.aggregate_strings(cast(clients.c.serial, String), ",")
        query = _labelled(select(clients.c.cell_id, joined), labels).group_by(clients.c.cell_id)
        if cell_ids is not None:
            query = query.where(clients.c.cell_id.in_(cell_ids))
        found = sorted((row[0], row[1]) for row in self._connection.execute(query))
        parts = [np.fromstring(numbers, dtype=np.int64, sep=",") for _, numbers in found]
        serials = np.concatenate([np.empty(0, dtype=np.int64), *parts])
        in_cell = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(serials)
        return ClientsByCell([cell_id for cell_id, _ in found], serials[order], in_cell[order])

    def ids_of(self, serials: npt.NDArray[np.int64]) -> dict[int, str]:
        """The ids of these clients by serial, without those that were removed meanwhile."""
        _, number = numbers_table(self._connection, serials)
        query = select(clients.c.serial, clients.c.client_id).where(clients.c.serial.in_(select(number)))
        return dict(self._connection.execute(query).all())

    def sample(self, most: int) -> npt.NDArray[np.int64]:
        """The serials of about so many clients at most, evenly spread over all; always the same ones."""
        lowest, highest = self._connection.execute(_SERIAL_RANGE).one()
        if lowest is None:
            return np.empty(0, dtype=np.int64)
        step = max(-(-(highest - lowest + 1) // most), 1)
        wanted = np.arange(lowest, highest + 1, step)
        _, number = numbers_table(self._connection, wanted)
        query = select(clients.c.serial).where(clients.c.serial.in_(select(number)))
        return np.array(sorted(self._connection.execute(query).scalars()), dtype=np.int64)

    def cells_of_serials(self, serials: npt.NDArray[np.int64]) -> dict[int, str]:
        """The cells of these clients by serial, without those that were removed meanwhile."""
        _, number = numbers_table(self._connection, serials)
        query = select(clients.c.serial, clients.c.cell_id).where(clients.c.serial.in_(select(number)))
        return {serial: cell_id for serial, cell_id in self._connection.execute(query)}  # noqa: C416

    def track_records(self, client_ids: Sequence[str]) -> dict[str, TrackRecord]:
        """The track records of these clients."""
        update_ratio = _ratio(
            slots.c.actual_update_s,
            slots.c.update_ns,
            candidates.c.compute_samples_per_s,
            candidates.c.expected_compute_samples_per_s,
        )
        upload_ratio = _ratio(
            slots.c.actual_upload_s,
            slots.c.upload_ns,
            candidates.c.throughput_bps,
            candidates.c.expected_throughput_bps,
        )
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
                *(func.avg(ratio) for ratio in (update_ratio, upload_ratio)),
                *(func.avg(ratio * ratio) for ratio in (update_ratio, upload_ratio)),
            )
            .join_from(slots, candidates)
            .where(slots.c.client_id.in_(client_ids))
            .group_by(slots.c.client_id)
        )
        records: defaultdict[str, TrackRecord] = defaultdict(TrackRecord)
        for client_id, *values, update_square, upload_square in self._connection.execute(query):
            known = TrackRecord(*values)
            records[client_id] = replace(
                known,
                update_spread=_deviation(known.update_ratio, update_square),
                upload_spread=_deviation(known.upload_ratio, upload_square),
            )
        return records

    def labels_of(self, serials: Sequence[int]) -> dict[int, dict[str, str]]:
        """The labels of those of these clients that have any."""
        labels: defaultdict[int, dict[str, str]] = defaultdict(dict)
        of_these = select(client_labels).where(client_labels.c.client_serial.in_(serials))
        for row in self._connection.execute(of_these.order_by(client_labels.c.name)):
            labels[row.client_serial][row.name] = row.value
        return dict(labels)

    def _add_labels(self, labels_by_serial: Mapping[int, Mapping[str, str]]) -> None:
        rows = [
            {"client_serial": serial, "name": name, "value": value}
            for serial, labels in labels_by_serial.items()
            for name, value in labels.items()
        ]
        if rows:
            self._connection.execute(insert(client_labels), rows)

    def _with_labels(self, query: Select[Any]) -> list[Client]:
        rows = self._connection.execute(query).all()
        labels = self.labels_of([row.serial for row in rows])
        return [
            Client(row.serial, row.client_id, row.enrolled_at, row.cell_id, labels.get(row.serial, {}))
            for row in rows
        ]


def _ratio(
    actual_s: Column[Any], planned_ns: Column[Any], reported: Column[Any], expected: Column[Any]
) -> ColumnElement[Any]:
    """Actual time by reported time; the planned time is that of the expected figure. Null: unknown."""
    planned_s = cast(func.nullif(planned_ns, 0), Float) / 1e9
    return actual_s / planned_s / func.coalesce(expected / reported, 1.0)


def _deviation(mean: float | None, mean_square: float | None) -> float | None:
    """The standard deviation."""
    return None if mean is None or mean_square is None else math.sqrt(max(mean_square - mean * mean, 0.0))


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


_KEYS = select(api_keys, clients.c.client_id).outerjoin_from(
    api_keys, clients, clients.c.serial == api_keys.c.client_serial
)
_VALID_KEY = with_values(_KEYS.where(api_keys.c.revoked_at.is_(None)), api_keys.c.key_id)


class Keys(Repository):
    """The API keys in a database."""

    def add(self, keys: Sequence[ApiKey], client_serials: dict[str, int]) -> None:
        """Store new keys; client keys need their client's serial."""
        rows = [
            {
                "key_id": key.key_id,
                "digest": key.digest,
                "scope": key.scope,
                "name": key.name,
                "created_at": key.created_at,
                "client_serial": client_serials[key.client_id] if key.client_id else None,
                "replaces": key.replaces,
            }
            for key in keys
        ]
        self._connection.execute(insert(api_keys), rows)

    def find(self, key_id: str) -> ApiKey | None:
        """A key that has not been revoked."""
        return self._find(ApiKey, _VALID_KEY, key_id=key_id)

    def page(self, paging: Paging) -> Page[ApiKey]:
        """All keys, the newest first."""
        query = _KEYS.order_by(api_keys.c.created_at.desc(), api_keys.c.key_id)
        rows = self._connection.execute(paging.of(query))
        return Page(
            [as_dataclass(ApiKey, row) for row in rows], count_rows(self._connection, select(api_keys))
        )

    def count_in_use(self, client_serial: int) -> int:
        """The number of valid keys of a client, without successors that are not in use yet."""
        query = select(func.count()).where(
            api_keys.c.client_serial == client_serial,
            api_keys.c.revoked_at.is_(None),
            api_keys.c.replaces.is_(None),
        )
        return self._connection.execute(query).scalar_one()

    def remove_successor(self, key_id: str) -> None:
        """Delete the unused successor of a key."""
        self._connection.execute(delete(api_keys).where(api_keys.c.replaces == key_id))

    def mark_in_use(self, key_id: str) -> None:
        """Record that a successor has replaced its key."""
        self._connection.execute(update(api_keys).where(api_keys.c.key_id == key_id).values(replaces=None))

    def revoke(self, key_id: str, now: datetime) -> list[str]:
        """Revoke a key and its successor; returns the ids of the keys that were valid."""
        ended = self._revoke(or_(api_keys.c.key_id == key_id, api_keys.c.replaces == key_id), now)
        if key_id not in ended:
            raise KeyNotFoundError(key_id)
        return ended

    def revoke_all_of(self, client_serial: int, now: datetime) -> list[str]:
        """Revoke every key of a client; returns the ids of the keys that were valid."""
        return self._revoke(api_keys.c.client_serial == client_serial, now)

    def delete_revoked_before(self, moment: datetime) -> int:
        """Delete keys that were revoked before this time; returns their number."""
        return self._connection.execute(delete(api_keys).where(api_keys.c.revoked_at < moment)).rowcount

    def _revoke(self, which: ColumnElement[bool], now: datetime) -> list[str]:
        change = update(api_keys).where(which, api_keys.c.revoked_at.is_(None))
        ended = change.values(revoked_at=now, replaces=None).returning(api_keys.c.key_id)
        return sorted(self._connection.execute(ended).scalars())
