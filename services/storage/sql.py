"""SQL helpers: column types, rows as dataclasses, paging, lists of numbers as tables, and ids."""

import secrets
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
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import TypeAdapter
from sqlalchemy import JSON, CheckConstraint, Dialect, Integer, String, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """A timestamp as ``UtcDateTime`` stores it."""
    return (moment - _EPOCH) // _MICROSECOND


class UtcDateTime(TypeDecorator[datetime]):
    """A UTC timestamp, stored as integer microseconds since 1970: exact, ordered, without a time zone."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """To microseconds."""
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """From microseconds."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class Choice(TypeDecorator[StrEnum]):
    """An enumeration value, stored as text."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kinds: type[StrEnum]) -> None:
        super().__init__()
        self.kinds = kinds

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        """From text."""
        return None if value is None else self.kinds(value)


Serial = BigInteger().with_variant(Integer, "sqlite")
"""An automatically incremented number; SQLite increments INTEGER columns only."""

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


class JsonOf(TypeDecorator[Any]):
    """A dataclass, stored as one JSON object and validated on write and read.

    A missing field gets its default. An unknown field is an error: it was written by a newer version, and
    this version cannot apply it.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._names = {field.name for field in fields(kind)}

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """JSONB on PostgreSQL."""
        return dialect.type_descriptor(Json.dialect_impl(dialect))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """To a JSON object."""
        return None if value is None else self._adapter.dump_python(value, mode="json", warnings="error")

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        """From a JSON object."""
        if value is None:
            return None
        if unknown := value.keys() - self._names:
            raise ValueError(f"{self.kind.__name__} has no field {', '.join(sorted(unknown))}")
        return self._adapter.validate_python(value)


def choice(name: str, kinds: type[StrEnum], **options: Any) -> tuple[Column[StrEnum], CheckConstraint]:
    """A column for an enumeration, with a check constraint on its values."""
    values = ", ".join(f"'{kind.value}'" for kind in kinds)
    known = CheckConstraint(f"{name} IN ({values})", name=f"{name}_known")
    return Column(name, Choice(kinds), nullable=False, **options), known


_ID_BYTES = 8


def new_id(kind: str) -> str:
    """A random id with the kind of resource as its prefix."""
    return f"{kind}-{secrets.token_hex(_ID_BYTES)}"


Serials = npt.NDArray[np.int64]
"""Primary keys of rows."""

_D = TypeVar("_D", bound="DataclassInstance")
_T = TypeVar("_T")


def as_dataclass(kind: type[_D], row: Row[Any], **given: object) -> _D:
    """Build a dataclass from the columns with the same names."""
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's public name
    return kind(**{name: values[name] for name in _field_names(kind) if name not in given}, **given)


class RowPart(Generic[_D]):
    """Builds a dataclass from consecutive columns in a row of several joined tables."""

    def __init__(self, kind: type[_D], table: Table, *, but: Collection[str] = ()) -> None:
        self._kind = kind
        self._names = [name for name in _field_names(kind) if name not in but]
        self.columns = [table.c[name] for name in self._names]

    def read(self, values: Iterator[Any], **given: object) -> _D:
        """Consume the next values of a row; some fields may be passed explicitly."""
        return self._kind(**dict(zip(self._names, values, strict=False)), **given)


@cache
def _field_names(kind: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def with_values(query: Select[Any], *columns: Column[Any]) -> Select[Any]:
    """Filter a query by bind parameters that have the names of the columns."""
    return query.where(*(column_ == bindparam(column_.name) for column_ in columns))


def change_where(table: Table, *columns: Column[Any]) -> Update:
    """Update the rows that match the bind parameters ``of_<column>``; the other parameters are set."""
    return update(table).where(*(column_ == bindparam(f"of_{column_.name}") for column_ in columns))


class Repository:
    """The rows of some tables, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _find(self, kind: type[_D], query: Select[Any], **values: object) -> _D | None:
        """The row of a query that has at most one, as a dataclass."""
        row = self._connection.execute(query, values).one_or_none()
        return as_dataclass(kind, row) if row else None

    def _list(self, kind: type[_D], query: Select[Any], **values: object) -> list[_D]:
        """The rows of a query as dataclasses."""
        return [as_dataclass(kind, row) for row in self._connection.execute(query, values)]


@dataclass(frozen=True)
class Paging:
    """The requested page of a list."""

    page: int
    per_page: int

    def of(self, query: Select[Any]) -> Select[Any]:
        """The rows on this page."""
        return query.limit(self.per_page).offset((self.page - 1) * self.per_page)


@dataclass(frozen=True)
class Page(Generic[_T]):
    """A page of a list, and the total number of items."""

    items: Sequence[_T]
    total: int


def count_rows(connection: Connection, query: Select[Any]) -> int:
    """The number of rows of a query."""
    return connection.execute(select(func.count()).select_from(query.order_by(None).subquery())).scalar_one()


def insert_tuples(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert rows through the driver, for tables with tens of thousands of rows per transaction."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    names, marks = ", ".join(columns), ", ".join([mark] * len(columns))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - no user input
    connection.exec_driver_sql(statement, list(rows))


def numbers_table(
    connection: Connection, numbers: npt.NDArray[np.int64]
) -> tuple[FromClause, ColumnElement[int]]:
    """A list of numbers of any length as a table for joins, and its column."""
    if connection.dialect.name == "postgresql":
        array = cast(numbers.tolist(), ARRAY(BigInteger))
        table: Any = (
            func.unnest(array).table_valued(column("value", BigInteger), name="numbers").render_derived()
        )
    else:
        as_json = "[" + ",".join(map(str, numbers.tolist())) + "]"
        table = func.json_each(as_json).table_valued(column("value", BigInteger), name="numbers")
    return table, table.c.value
