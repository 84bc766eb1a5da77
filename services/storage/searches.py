"""The lists that an operator searches: tasks, clients, keys and events, a page at a time.

Except for tasks, of which there are few, nothing is counted: a page says whether there is a next one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, desc, exists, func, or_, select, type_coerce

from services.access import ApiKey, Scope
from services.domain.rounds import OPEN_STATES, SlotOutcome
from services.domain.tasks import Task, TaskState
from services.storage.events import Event
from services.storage.sql import Json, Page, Paging, Repository, as_dataclass, count_rows
from services.storage.tables import (
    api_keys,
    client_labels,
    clients,
    events,
    resource_reports,
    rounds,
    slots,
    tasks,
)

_T = TypeVar("_T")

RELIABLE_SHARE = 0.9
"""A client is reliable if it delivered in at least this share of its slots that are over."""


class ClientState(StrEnum):
    """How recently a client has reported."""

    REPORTING = "reporting"
    STALE = "stale"
    """It has not reported recently; a search finds those that never reported too."""
    SILENT = "silent"
    """It has never reported."""


class Reliability(StrEnum):
    """How often a client delivered what it was selected for."""

    RELIABLE = "reliable"
    UNRELIABLE = "unreliable"
    UNKNOWN = "unknown"
    """It has had no slot yet."""


class TaskOrder(StrEnum):
    """What comes first in the list of tasks."""

    CREATED = "created"
    ACTIVITY = "activity"
    NAME = "name"


class KeyOwner(StrEnum):
    """Whose keys are listed."""

    OPERATORS = "operators"
    CLIENTS = "clients"


@dataclass(frozen=True)
class Slice(Generic[_T]):
    """A page of a list that nobody has counted."""

    items: Sequence[_T]
    has_more: bool


@dataclass(frozen=True)
class ClientSearch:
    """Which clients are wanted."""

    text: str = ""
    """Part of an id, or a label as ``name=value``."""
    cell_id: str | None = None
    state: ClientState | None = None
    reliability: Reliability | None = None
    newest_first: bool = True


class FoundClient(NamedTuple):
    """A client in the list."""

    serial: int
    client_id: str
    cell_id: str
    enrolled_at: datetime


class ClientRound(NamedTuple):
    """A slot of a client."""

    task_id: str
    task_name: str
    round_id: str
    number: int
    outcome: SlotOutcome
    update_ns: int
    actual_update_s: float | None
    upload_ns: int
    actual_upload_s: float | None
    opened_at: datetime


class Searches(Repository):
    """The searches in a database."""

    def tasks(self, text: str, state: TaskState | None, order: TaskOrder, paging: Paging) -> Page[Task]:
        """The tasks whose name or id contains a text."""
        query = select(tasks)
        if text:
            query = query.where(or_(_contains(_TASK_NAME, text), _contains(tasks.c.task_id, text)))
        if state is not None:
            query = query.where(tasks.c.state == state)
        ordered = query.order_by(*_TASK_ORDERS[order], tasks.c.serial.desc())
        rows = self._connection.execute(paging.of(ordered))
        return Page([as_dataclass(Task, row) for row in rows], count_rows(self._connection, query))

    def task_names(self, task_ids: Collection[str]) -> dict[str, str]:
        """The names of these tasks, by id; those that were deleted are missing."""
        query = select(tasks.c.task_id, _TASK_NAME).where(tasks.c.task_id.in_(task_ids))
        return {task_id: name for task_id, name in self._connection.execute(query)}  # noqa: C416

    def key_names(self, key_ids: Collection[str]) -> dict[str, str]:
        """The names of these keys, by id; keys without a name are missing, and those that were deleted."""
        query = select(api_keys.c.key_id, api_keys.c.name).where(api_keys.c.key_id.in_(key_ids))
        return {key_id: name for key_id, name in self._connection.execute(query) if name}

    def clients(self, search: ClientSearch, fresh_since: datetime, paging: Paging) -> Slice[FoundClient]:
        """The clients that are wanted; those with a report observed since a time are reporting."""
        query = select(clients.c.serial, clients.c.client_id, clients.c.cell_id, clients.c.enrolled_at)
        for condition in _client_conditions(search, fresh_since):
            query = query.where(condition)
        query = query.order_by(clients.c.serial.desc() if search.newest_first else clients.c.serial)
        found = self._slice(query, paging)
        return Slice([FoundClient._make(row) for row in found.items], found.has_more)

    def last_reports(self, client_serials: Sequence[int]) -> dict[int, datetime]:
        """When each of these clients that has reported made its newest report."""
        newest = func.max(resource_reports.c.observed_at, type_=resource_reports.c.observed_at.type)
        query = (
            select(resource_reports.c.client_serial, newest)
            .where(resource_reports.c.client_serial.in_(client_serials))
            .group_by(resource_reports.c.client_serial)
        )
        return {serial: moment for serial, moment in self._connection.execute(query)}  # noqa: C416

    def in_open_round(self, client_ids: Collection[str]) -> dict[str, str]:
        """The open rounds in which these clients have a slot that waits for them."""
        query = (
            select(slots.c.client_id, rounds.c.round_id)
            .join_from(rounds, slots, slots.c.round_serial == rounds.c.serial)
            .where(
                rounds.c.state.in_(OPEN_STATES),
                slots.c.outcome == SlotOutcome.PENDING,
                slots.c.client_id.in_(client_ids),
            )
        )
        return {client_id: round_id for client_id, round_id in self._connection.execute(query)}  # noqa: C416

    def rounds_of_client(self, client_id: str, most: int) -> list[ClientRound]:
        """The newest slots of a client."""
        query = (
            select(
                tasks.c.task_id,
                _TASK_NAME,
                rounds.c.round_id,
                rounds.c.number,
                slots.c.outcome,
                slots.c.update_ns,
                slots.c.actual_update_s,
                slots.c.upload_ns,
                slots.c.actual_upload_s,
                rounds.c.opened_at,
            )
            .join_from(slots, rounds, rounds.c.serial == slots.c.round_serial)
            .join(tasks, tasks.c.serial == rounds.c.task_serial)
            .where(slots.c.client_id == client_id)
            .order_by(slots.c.round_serial.desc())
            .limit(most)
        )
        return [ClientRound._make(row) for row in self._connection.execute(query)]

    def keys(self, text: str, owner: KeyOwner | None, paging: Paging) -> Slice[ApiKey]:
        """The keys whose name, id or client contains a text, newest first."""
        query = select(api_keys, clients.c.client_id).outerjoin_from(
            api_keys, clients, clients.c.serial == api_keys.c.client_serial
        )
        if text:
            columns = (api_keys.c.name, api_keys.c.key_id, clients.c.client_id)
            query = query.where(or_(*(_contains(column, text) for column in columns)))
        if owner is not None:
            of_client = api_keys.c.scope == Scope.CLIENT
            query = query.where(of_client if owner is KeyOwner.CLIENTS else ~of_client)
        found = self._slice(query.order_by(api_keys.c.created_at.desc(), api_keys.c.key_id), paging)
        return Slice([as_dataclass(ApiKey, row) for row in found.items], found.has_more)

    def keys_of_client(self, client_serial: int) -> list[ApiKey]:
        """The valid keys of a client, newest first."""
        query = (
            select(api_keys, clients.c.client_id)
            .join_from(api_keys, clients, clients.c.serial == api_keys.c.client_serial)
            .where(api_keys.c.client_serial == client_serial, api_keys.c.revoked_at.is_(None))
            .order_by(api_keys.c.created_at.desc())
        )
        return self._list(ApiKey, query)

    def events(
        self, prefix: str, about: str, before: int | None, most: int
    ) -> tuple[Sequence[Event], int | None]:
        """The newest events before a number whose kind has a prefix, and that concern a thing with this id.

        It looks at a bounded number of events; the second value is where to go on, none at the oldest event.
        """
        newest = self._connection.execute(select(func.max(events.c.number))).scalar_one() or 0
        end = newest + 1 if before is None else min(before, newest + 1)
        query = select(events).where(events.c.number < end, events.c.number >= end - _LOOKED_AT)
        if prefix:
            query = query.where(events.c.kind.startswith(prefix, autoescape=True))
        if about:
            things = (events.c.task_id, events.c.round_id, events.c.client_id)
            query = query.where(or_(*(column == about for column in things)))
        found = self._list(Event, query.order_by(events.c.number.desc()).limit(most + 1))
        if len(found) > most:
            return found[:most], found[most - 1].number
        oldest = self._connection.execute(select(func.min(events.c.number))).scalar_one()
        return found, end - _LOOKED_AT if oldest is not None and oldest < end - _LOOKED_AT else None

    def _slice(self, query: Select[Any], paging: Paging) -> Slice[Any]:
        start = (paging.page - 1) * paging.per_page
        rows = self._connection.execute(query.limit(paging.per_page + 1).offset(start)).all()
        return Slice(rows[: paging.per_page], len(rows) > paging.per_page)


_LOOKED_AT = 20_000
"""Events that one search looks at: there is no index for what it searches."""

_TASK_NAME = type_coerce(tasks.c.terms, Json)["name"].as_string()
_LAST_ACTIVITY = func.coalesce(
    tasks.c.ended_at,
    select(rounds.c.active_at)
    .where(rounds.c.task_serial == tasks.c.serial, rounds.c.number == tasks.c.rounds)
    .scalar_subquery(),
    tasks.c.created_at,
)
_TASK_ORDERS: Mapping[TaskOrder, tuple[ColumnElement[Any], ...]] = {
    TaskOrder.CREATED: (),
    TaskOrder.ACTIVITY: (desc(_LAST_ACTIVITY),),
    TaskOrder.NAME: (func.lower(_TASK_NAME),),
}
_over = slots.c.outcome != SlotOutcome.PENDING
_with_slots = select(slots.c.client_id).where(_over).group_by(slots.c.client_id)


def _contains(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    return column.icontains(text, autoescape=True)


def _client_conditions(search: ClientSearch, fresh_since: datetime) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    name, is_label, value = search.text.partition("=")
    if is_label:
        labelled = select(client_labels.c.client_serial).where(
            client_labels.c.name == name.strip(), client_labels.c.value == value.strip()
        )
        conditions.append(clients.c.serial.in_(labelled))
    elif search.text:
        conditions.append(_contains(clients.c.client_id, search.text))
    if search.cell_id is not None:
        conditions.append(clients.c.cell_id == search.cell_id)
    if search.state is not None:
        conditions.append(_in_state(search.state, fresh_since))
    if search.reliability is not None:
        conditions.append(_as_reliable_as(search.reliability))
    return conditions


def _in_state(state: ClientState, fresh_since: datetime) -> ColumnElement[bool]:
    own = resource_reports.c.client_serial == clients.c.serial
    if state is ClientState.SILENT:
        return ~exists().where(own)
    fresh = exists().where(own, resource_reports.c.observed_at >= fresh_since)
    return fresh if state is ClientState.REPORTING else ~fresh


def _as_reliable_as(reliability: Reliability) -> ColumnElement[bool]:
    if reliability is Reliability.UNKNOWN:
        return clients.c.client_id.not_in(_with_slots)
    received = func.count().filter(slots.c.outcome == SlotOutcome.RECEIVED)
    delivers = received >= RELIABLE_SHARE * func.count()
    chosen = _with_slots.having(delivers if reliability is Reliability.RELIABLE else ~delivers)
    return clients.c.client_id.in_(chosen)
