"""Parameters of a policy or an aggregator: the fields of a frozen dataclass, validated on creation."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")

_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


class ParameterError(ValueError):
    """An unknown parameter, or an invalid value."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True)
class Parameter:
    """A parameter as callers see it."""

    name: str
    default: int | float | None
    description: str


def parameter(default: Any, *, description: str, **bounds: float) -> Any:
    """A field of a dataclass of parameters; bounds are ``ge``, ``gt``, ``le`` and ``lt``."""
    assert bounds.keys() <= _BOUNDS.keys(), "unknown bound"
    return field(default=default, metadata={"description": description, "bounds": bounds})


def parameters_of(kind: "type[DataclassInstance]") -> list[Parameter]:
    """The parameters of a class."""
    defaults: Mapping[str, Any] = {field_.name: field_.default for field_ in fields(kind)}
    return [
        Parameter(field_.name, defaults[field_.name], field_.metadata["description"])
        for field_ in fields(kind)
    ]


def with_parameters(kind: type[_T], given: Mapping[str, object]) -> _T:
    """An instance with these parameters and defaults for the others; ``ParameterError`` if invalid."""
    known = {field_.name: field_ for field_ in fields(kind)}
    types = get_type_hints(kind)
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise ParameterError(name, f"unknown parameter; known: {names}")
        _check(name, value, types[name], known[name].metadata["bounds"])
    return kind(**given)


def _check(name: str, value: Any, kind: Any, bounds: Mapping[str, float]) -> None:
    kinds = get_args(kind) or (kind,)
    if value is None and type(None) in kinds:
        return
    number = "a number" if float in kinds else "a whole number"
    # Not isinstance: true and false are instances of int.
    allowed = (int, float) if float in kinds else (int,)
    if type(value) not in allowed or not math.isfinite(value):
        raise ParameterError(name, f"must be {number}" + (" or null" if type(None) in kinds else ""))
    for bound, limit in bounds.items():
        holds, words = _BOUNDS[bound]
        if not holds(value, limit):
            raise ParameterError(name, f"must be {words} {limit:g}")
