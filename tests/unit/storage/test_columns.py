"""Dataclasses that are kept as JSON: validated when written and when read."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from sqlalchemy.dialects import sqlite

from services.domain.tasks import Clock, TaskTerms
from services.storage.sql import JsonOf
from tests.unit.domain.task_terms import TERMS

COLUMN = JsonOf(TaskTerms)
DIALECT = sqlite.dialect()


def _write(terms: TaskTerms) -> Any:
    return COLUMN.process_bind_param(terms, DIALECT)


def _read(kept: Any, column: JsonOf = COLUMN) -> Any:
    return column.process_result_value(kept, DIALECT)


def test_what_is_written_is_read_again_exactly() -> None:
    terms = replace(TERMS, labels={"city": "Århus"}, seed=2**53 - 1, learning_rate=0.1, clock=Clock.SIMULATED)
    kept = _write(terms)
    assert kept["clock"] == "simulated"
    assert _read(kept) == terms
    assert type(_read(kept).clock) is Clock


def test_no_value_stays_none() -> None:
    assert _write(None) is None  # type: ignore[arg-type]
    assert _read(None) is None


def test_a_field_that_an_older_version_did_not_write_gets_its_default() -> None:
    @dataclass(frozen=True)
    class WithNewField(TaskTerms):
        of_a_newer_version: str = "float32"

    column = JsonOf(WithNewField)
    assert _read(_write(TERMS), column) == WithNewField(**vars(TERMS), of_a_newer_version="float32")
    kept = _write(TERMS) | {"of_a_newer_version": "int8"}
    assert _read(kept, column).of_a_newer_version == "int8"


def test_a_field_without_a_default_must_be_there() -> None:
    kept = _write(TERMS)
    del kept["round_deadline_s"]
    with pytest.raises(ValidationError, match="round_deadline_s"):
        _read(kept)


def test_a_field_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ValueError, match="TaskTerms has no field antennas, beams"):
        _read(_write(TERMS) | {"beams": 1, "antennas": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clock", "lunar"),
        ("slot_enforcement", "never"),
        ("round_deadline_s", 0.0),
        ("round_deadline_s", "soon"),
        ("request_fraction", 1.001),
        ("min_clients", 0),
        ("seed", 1.5),
        ("labels", [1]),
        ("name", None),
    ],
)
def test_a_wrong_value_is_not_read(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match="TaskTerms"):
        _read(asdict(TERMS) | {name: value})


@pytest.mark.parametrize(("name", "value"), [("seed", "seven"), ("clock", 5), ("labels", {"a": 1})])
def test_a_wrong_value_is_not_written(name: str, value: Any) -> None:
    with pytest.raises(PydanticSerializationError, match="Expected"):
        _write(replace(TERMS, **{name: value}))
