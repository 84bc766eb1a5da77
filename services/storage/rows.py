"""Rows as dataclasses, pages of them, and lists of numbers as tables.

Statements that are run often are built once, with places for their values: to build one takes SQLAlchemy
three times as long as to run it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Table,
    Update,
    bindparam,
    cast,
    column,
    func,
    select,
    update,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_D = TypeVar("_D", bound="DataclassInstance")
_T = TypeVar("_T")


def as_dataclass(kind: type[_D], row: Row[Any], **given: object) -> _D:
    """A dataclass from the columns of the same names."""
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's public name
    return kind(**{name: values[name] for name in _field_names(kind) if name not in given}, **given)


class PartOfRow(Generic[_D]):
    """A dataclass out of columns that follow each other in a row of several tables."""

    def __init__(self, kind: type[_D], table: Table, *, but: Collection[str] = ()) -> None:
        self._kind = kind
        self._names = [name for name in _field_names(kind) if name not in but]
        self.columns = [table.c[name] for name in self._names]

    def read(self, values: Iterator[Any], **given: object) -> _D:
        """Take its values off a row; some fields may be given."""
        return self._kind(**dict(zip(self._names, values, strict=False)), **given)


@cache
def _field_names(kind: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def with_values(query: Select[Any], *columns: Column[Any]) -> Select[Any]:
    """The rows of a query with these values, which are given under the names of the columns."""
    return query.where(*(one == bindparam(one.name) for one in columns))


def change_where(table: Table, *columns: Column[Any]) -> Update:
    """Set the columns that values are given for, in the rows whose ``of_`` columns have these values."""
    return update(table).where(*(one == bindparam(f"of_{one.name}") for one in columns))


@dataclass(frozen=True)
class Paging:
    """Which page of a list is asked for."""

    page: int
    per_page: int

    def of(self, query: Select[Any]) -> Select[Any]:
        """The rows on this page."""
        return query.limit(self.per_page).offset((self.page - 1) * self.per_page)


@dataclass(frozen=True)
class Page(Generic[_T]):
    """Some items of a list, and how many there are in all."""

    items: Sequence[_T]
    total: int


def count(connection: Connection, query: Select[Any]) -> int:
    """How many rows a query has."""
    return connection.execute(select(func.count()).select_from(query.order_by(None).subquery())).scalar_one()


def insert_tuples(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert rows as the driver takes them: for the tables that are filled by the ten thousand."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    names, marks = ", ".join(columns), ", ".join([mark] * len(columns))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - nothing of a caller's
    connection.exec_driver_sql(statement, list(rows))


def numbers_table(
    connection: Connection, numbers: npt.NDArray[np.int64]
) -> tuple[FromClause, ColumnElement[int]]:
    """A list of numbers of any length as a table to join with, and its column."""
    if connection.dialect.name == "postgresql":
        array = cast(numbers.tolist(), ARRAY(BigInteger))
        table: Any = (
            func.unnest(array).table_valued(column("value", BigInteger), name="numbers").render_derived()
        )
    else:
        as_json = "[" + ",".join(map(str, numbers.tolist())) + "]"
        table = func.json_each(as_json).table_valued(column("value", BigInteger), name="numbers")
    return table, table.c.value
