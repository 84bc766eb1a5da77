"""The form that starts a task: what was entered, and what is wrong with it by the rules of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic import ValidationError

from services.contract.tasks import TaskRequest

_TEXTS = ("name", "model", "dataset", "policy", "clock")
_NUMBERS = ("round_deadline_s", "final_deadline_s", "request_fraction", "seed", "target_accuracy")
_LONGEST_NUMBER = 32
_PAPER = {
    "name": "",
    "model": "paper-cnn",
    "dataset": "",
    "policy": "fedcs",
    "clock": "wall",
    "round_deadline_s": "180",
    "final_deadline_s": "",
    "request_fraction": "0.1",
    "seed": "0",
    "target_accuracy": "",
}
"""What the form says at first: the paper's settings, without data to validate on."""


@dataclass(frozen=True)
class TaskForm:
    """The form as it is shown."""

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_PAPER))
    auto_advance: bool = False
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field."""


def read_task(form: Mapping[str, str]) -> TaskRequest | TaskForm:
    """The task that a form describes; if it cannot be, the form again, with what is wrong."""
    values = {name: form.get(name, "").strip() for name in (*_TEXTS, *_NUMBERS)}
    auto_advance = "auto_advance" in form
    given: dict[str, object] = {name: values[name] for name in _TEXTS if values[name]}
    given |= {name: as_number(values[name]) for name in _NUMBERS if values[name]}
    try:
        return TaskRequest.model_validate(given | {"auto_advance": auto_advance})
    except ValidationError as error:
        return TaskForm(values, auto_advance, _reasons(error))


def as_number(text: str) -> int | float | str:
    """A number if it is one; what is none is for the contract to refuse."""
    if len(text) > _LONGEST_NUMBER:
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _reasons(error: ValidationError) -> dict[str, str]:
    """A validator of the whole says with ``within`` which field it means."""
    reasons: dict[str, str] = {}
    for one in error.errors():
        name, *_ = one["loc"] or one.get("ctx", {}).get("within", ("name",))
        reasons.setdefault(str(name), one["msg"])
    return reasons
