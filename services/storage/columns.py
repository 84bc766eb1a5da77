"""Column types that mean the same on SQLite and PostgreSQL."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Dialect, Integer, String, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """A moment as ``Moment`` keeps it."""
    return (moment - _EPOCH) // _MICROSECOND


class Moment(TypeDecorator[datetime]):
    """A moment in UTC, kept as microseconds since 1970: exact, ordered, with no zone to lose."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """To microseconds."""
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """From microseconds."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class Choice(TypeDecorator[StrEnum]):
    """A value of an enumeration, kept as its text."""

    impl = String(32)
    cache_ok = True

    def __init__(self, kinds: type[StrEnum]) -> None:
        super().__init__()
        self.kinds = kinds

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        """From text."""
        return None if value is None else self.kinds(value)


Serial = BigInteger().with_variant(Integer, "sqlite")
"""A number given out by the database; only INTEGER counts up by itself on SQLite."""

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def choice(name: str, kinds: type[StrEnum], **options: Any) -> tuple[Column[StrEnum], CheckConstraint]:
    """A column that holds the values of an enumeration, and nothing else."""
    values = ", ".join(f"'{kind.value}'" for kind in kinds)
    known = CheckConstraint(f"{name} IN ({values})", name=f"{name}_known")
    return Column(name, Choice(kinds), nullable=False, **options), known
