from dataclasses import dataclass

import pytest

from services.domain.parameters import Parameter, ParameterError, parameter, parameters_of, with_parameters


@dataclass(frozen=True)
class Example:
    share: float = parameter(0.2, gt=0, lt=1, description="Of the clients.")
    count: int = parameter(3, ge=1, le=9, description="Of them.")
    cap: float | None = parameter(None, ge=1, description="If any.")


def test_what_is_not_given_has_its_default() -> None:
    assert with_parameters(Example, {}) == Example(0.2, 3, None)
    assert with_parameters(Example, {"count": 9, "cap": 2}) == Example(0.2, 9, 2)
    assert with_parameters(Example, {"share": 0.5, "cap": None}) == Example(0.5, 3, None)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("shape", 1, "unknown parameter; known: share, count, cap"),
        ("share", "0.5", "must be a number"),
        ("share", True, "must be a number"),
        ("share", None, "must be a number"),
        ("share", float("nan"), "must be a number"),
        ("share", 0, "must be more than 0"),
        ("share", 1, "must be less than 1"),
        ("count", 1.5, "must be a whole number"),
        ("count", 0, "must be at least 1"),
        ("count", 10, "must be at most 9"),
        ("cap", "no", "must be a number or null"),
        ("cap", 0.5, "must be at least 1"),
    ],
)
def test_what_a_parameter_cannot_have_is_refused(name: str, value: object, reason: str) -> None:
    with pytest.raises(ParameterError) as refused:
        with_parameters(Example, {name: value})
    assert (refused.value.name, refused.value.reason) == (name, reason)
    assert str(refused.value) == f"{name}: {reason}"


def test_a_class_without_parameters_takes_none() -> None:
    @dataclass(frozen=True)
    class Plain:
        pass

    assert with_parameters(Plain, {}) == Plain()
    with pytest.raises(ParameterError, match="known: none"):
        with_parameters(Plain, {"share": 1})


def test_parameters_can_be_listed() -> None:
    assert parameters_of(Example)[1:] == [
        Parameter("count", 3, "Of them."),
        Parameter("cap", None, "If any."),
    ]
