"""``/dashboard/tasks/new``: the form of a new task, made from the contract and the registries.

A field of ``TaskRequest`` that no group names appears under *Other settings*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from operator_api.dashboard.page_route import FormDep, PageRoute, as_number
from operator_api.dashboard.rendering import render
from operator_api.dashboard.wording import (
    as_share,
    explain,
    label_of,
    label_with_unit,
    policy_options,
    unit_of,
)
from operator_api.dependencies import ServiceDep
from operator_api.routes.cells import require_task_cells
from operator_api.security import Access, access
from operator_api.service import Service
from services.aggregators import AGGREGATORS
from services.contract.tasks import TaskRequest
from services.domain.builtins import DATASETS, NETWORKS
from services.domain.parameters import Parameter, parameters_of
from services.domain.selection import POLICIES
from services.protocol.initialization import start_task

_SCHEMA = TaskRequest.model_json_schema()
_PAPER_DEADLINE = "180"
_HINTS = {
    "name": "For people.",
    "model": "What is trained; your own network is under More.",
    "dataset": "Accuracy is measured on it. Without one no accuracy is known.",
    "policy": "Who takes part in a round.",
    "request_fraction": "How many of the clients are asked in a round.",
    "labels": "Only clients with all of these, such as vehicle=bus, shift=night.",
    "round_deadline_s": "A round has to end before this. In adaptive mode: the longest.",
    "resource_blocks": "What a round wants in each cell.",
    "min_updates": "With fewer a round fails. The model of a round with one update is that client's update: "
    "3 or more for real devices.",
    "clock": "simulated: elapsed time comes from the simulator.",
    "seed": "Random if empty. Equal seeds draw equal clients.",
    "max_rounds": "Empty: no limit.",
    "final_deadline_s": "The task ends when no further round would end by this. Empty: no limit.",
    "target_accuracy": "The task ends at this accuracy. Needs a data set.",
    "update_encoding": "How updates travel; smaller ones upload sooner.",
    "aggregation": "What turns updates into the next model.",
    "auto_advance": "",
    "deadline_mode": "adaptive: each round has its own deadline.",
}


@dataclass(frozen=True)
class FormField:
    """A field as the form shows it."""

    name: str
    label: str
    hint: str = ""
    kind: Literal["text", "number", "check", "select"] = "text"
    default: str = ""
    options: Sequence[tuple[str, str]] = ()
    required: bool = False
    belongs_to: str = ""
    """``policy=fedcs``: it counts only with this choice."""


@dataclass(frozen=True)
class FieldGroup:
    """Fields that belong together; those in ``more`` are folded away."""

    title: str
    common: Sequence[FormField]
    more: Sequence[FormField]


_GROUPS: Mapping[str, tuple[str, str]] = {
    "What is trained": ("name model dataset", "own_model own_dataset partition_scheme seed"),
    "Who takes part": (
        "policy request_fraction labels",
        "min_clients min_updates report_max_age_s report_window_s allow_busy_clients cooldown max_share",
    ),
    "Radio and time": (
        "round_deadline_s deadline_mode resource_blocks update_encoding clock auto_advance",
        "min_resource_blocks priority min_round_deadline_s deadline_slack model_encoding topk_fraction "
        "model_size_bytes selection_s aggregation_s dispatch planning_factor correct_estimates cap_reports "
        "slot_enforcement slot_grace_s idle_timeout_s",
    ),
    "Learning": (
        "local_epochs batch_size learning_rate aggregation",
        "learning_rate_decay learning_rate_decay_s local_momentum weight_decay gradient_clip_norm "
        "proximal_mu calibrated_loss update_clip_factor max_update_norm evaluate_initial_model",
    ),
    "When it ends": ("max_rounds final_deadline_s target_accuracy", "target_metric"),
}
"""The fields of each group: those that are common, and those that are folded away."""
_SPECIAL = ("policy_parameters", "aggregation_parameters", "cells")
_OWN = {"own_model": "model", "own_dataset": "dataset"}
_CHOICES: Mapping[str, Sequence[tuple[str, str]]] = {
    "model": [(name, name) for name in NETWORKS],
    "dataset": [("", "none"), *((name, name) for name in DATASETS)],
    "policy": policy_options(),
}


def _field(name: str) -> FormField:
    """A field of the contract, by its JSON schema."""
    if name in _OWN:
        return FormField(name, label_of(name), "Instead, as package.module:name.")
    schema: dict[str, Any] = _SCHEMA["properties"][name]
    default = _PAPER_DEADLINE if name == "round_deadline_s" else schema.get("default")
    variants = [_resolved(variant) for variant in (schema, *schema.get("anyOf", ()))]
    options = _CHOICES.get(name) or next(
        ([(value, value) for value in variant["enum"]] for variant in variants if "enum" in variant), ()
    )
    kinds = {variant.get("type") for variant in variants}
    is_number = bool(kinds & {"number", "integer"})
    return FormField(
        name=name,
        label=label_with_unit(name),
        hint=_HINTS.get(name, _plain(schema.get("description", ""))),
        kind="select" if options else "check" if "boolean" in kinds else "number" if is_number else "text",
        default=_as_text(name, default),
        options=options,
        required=name in _SCHEMA["required"],
    )


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref", "").rpartition("/")[2]
    return _SCHEMA["$defs"][reference] if reference else schema


def _as_text(name: str, value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return "on" if value else ""
    if unit_of(name) == "%":
        value *= 100
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(description: str) -> str:
    """A description of the API without its markup; what is null there is empty here."""
    return description.replace("`", "").replace("null:", "empty:")


def _parameter_fields(choice: str, kinds: Mapping[str, Any]) -> list[FormField]:
    """The parameters of all policies or aggregators."""

    def made(kind: str, parameter: Parameter) -> FormField:
        label = parameter.name.replace("_", " ").capitalize()
        default = "" if parameter.default is None else f"{parameter.default:g}"
        hint = _plain(parameter.description)
        name = f"{choice}.{kind}.{parameter.name}"
        return FormField(name, label, f"{kind}: {hint}", "number", default, belongs_to=f"{choice}={kind}")

    return [made(name, parameter) for name, kind in kinds.items() for parameter in parameters_of(kind)]


def _make_groups() -> list[FieldGroup]:
    parameters = {
        "Who takes part": _parameter_fields("policy", POLICIES),
        "Learning": _parameter_fields("aggregation", AGGREGATORS),
    }
    groups = [
        FieldGroup(
            title, [*map(_field, common.split()), *parameters.get(title, ())], [*map(_field, more.split())]
        )
        for title, (common, more) in _GROUPS.items()
    ]
    placed = {name for both in _GROUPS.values() for names in both for name in names.split()}
    others = [name for name in _SCHEMA["properties"] if name not in placed and name not in _SPECIAL]
    return [*groups, FieldGroup("Other settings", [], [*map(_field, others)])] if others else groups


GROUPS = _make_groups()
FIELDS = {shown.name: shown for group in GROUPS for shown in (*group.common, *group.more)}
_DEFAULTS = {name: shown.default for name, shown in FIELDS.items()}


@dataclass(frozen=True)
class TaskForm:
    """The form as it is shown."""

    values: Mapping[str, str] = field(default_factory=lambda: dict(_DEFAULTS))
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field."""


class _UnreadableLabelsError(ValueError):
    """The labels are not pairs."""


def read_task(form: Mapping[str, str]) -> TaskRequest | TaskForm:
    """The task that a form describes; if it cannot be, the form again, with what is wrong."""
    try:
        return TaskRequest.model_validate(_content(form))
    except ValidationError as error:
        return refused(form, error.errors())
    except _UnreadableLabelsError:
        return TaskForm(_entered(form), {"labels": "Labels must be pairs such as vehicle=bus, shift=night"})


def _entered(form: Mapping[str, str]) -> dict[str, str]:
    """What the form shows again; a box that is not ticked is not sent."""
    unticked = {name: "" for name, shown in FIELDS.items() if shown.kind == "check"}
    return {**_DEFAULTS, **unticked, **form}


def _content(form: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the request; those that the form does not have are left to the contract."""
    content: dict[str, Any] = {}
    for name, shown in FIELDS.items():
        text = form.get(name, "").strip()
        if shown.belongs_to:
            choice, kind = shown.belongs_to.split("=")
            if text != shown.default and name in form and form.get(choice) == kind:
                parameters = content.setdefault(f"{choice}_parameters", {})
                parameters[name.rpartition(".")[2]] = as_number(text) if text else None
        elif shown.kind == "check":
            content[name] = bool(text)
        elif not text:
            if name in form and shown.default:  # it was emptied: none, if the contract allows that
                content[name] = None
        elif name == "labels":
            content[name] = _labels(text)
        else:
            content[_OWN.get(name, name)] = (
                as_share(name, as_number(text)) if shown.kind == "number" else text
            )
    if cells := [name.removeprefix("cell:") for name in form if name.startswith("cell:")]:
        content["cells"] = cells
    return content


def _labels(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(separator and name.strip() for name, separator, _ in pairs):
        raise _UnreadableLabelsError
    return {name.strip(): value.strip() for name, _, value in pairs}


def refused(form: Mapping[str, str], errors: Sequence[Any]) -> TaskForm:
    """The form again, with errors by field; validators of whole objects name the field in ``within``."""
    values = _entered(form)
    found: dict[str, str] = {}
    for error in errors:
        within = error.get("ctx", {}).get("within", ())
        name, *rest = [str(step) for step in (*error["loc"], *within) if step != "body"] or ["name"]
        if name.endswith("_parameters") and rest:
            choice = name.removesuffix("_parameters")
            name = f"{choice}.{values[choice]}.{rest[0]}"
            found.setdefault(name, f"{label_of(rest[0])} {error['msg']}")
        else:
            name = _own_field(form, name)
            found.setdefault(name, explain(name, error))
    return TaskForm(values, found)


def _own_field(form: Mapping[str, str], name: str) -> str:
    """The field that was filled in for a field of the request: ``own_model`` for ``model``."""
    own = f"own_{name}"
    return own if own in _OWN and form.get(own, "").strip() else name


router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/dashboard/tasks/new", openapi_extra=access(Access.MANAGE))
def show_form(request: Request, service: ServiceDep) -> Response:
    """The form with the paper's settings."""
    return _page(request, service, TaskForm())


@router.post("/dashboard/tasks", openapi_extra=access(Access.MANAGE))
def create_task(request: Request, form: FormDep, service: ServiceDep) -> Response:
    """Start a task, or show the form again with what is wrong."""
    wanted = read_task(form)
    if isinstance(wanted, TaskForm):
        return _page(request, service, wanted, status=422)
    with service.database.unit_of_work() as uow:
        try:
            require_task_cells(uow, wanted)
        except RequestValidationError as error:
            return _page(request, service, refused(form, error.errors()), status=422)
        task = start_task(uow, wanted.terms(), service.database.now())
        uow.commit()
    url = request.app.state.dashboard.templates.url(f"/dashboard/tasks/{task.task_id}")
    return RedirectResponse(url, 303)


def _page(request: Request, service: Service, form: TaskForm, *, status: int = 200) -> Response:
    with service.database.reading() as store:
        cells = store.cells.all()
    return render(request, "task_new.html", status=status, form=form, groups=GROUPS, cells=cells)
