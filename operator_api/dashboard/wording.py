"""The words in which pages speak of policies, states, checks and events."""

import re
from collections.abc import Mapping
from typing import Any

from services.domain.rounds import CandidateOutcome
from services.domain.selection import POLICIES
from services.storage.events import Event

_POLICY_NAMES = {
    "fedcs": "FedCS (recommended)",
    "optimal": "Exact optimum",
    "fedlim": "Random within deadline (FedLim)",
    "fl": "Everyone, no deadline (FL)",
}


def policy_name(name: str) -> str:
    """A policy as operators know it."""
    return _POLICY_NAMES.get(name, name)


def policy_options() -> list[tuple[str, str]]:
    """The policies to choose from: the value, and what is shown."""
    return [(name, policy_name(name)) for name in POLICIES]


CHECK_NAMES: Mapping[str, str] = {
    "database": "database",
    "migrations": "database version",
    "disk": "disk",
    "model_store": "model storage",
    "broker": "job queue",
    "workers": "workers",
}
"""The checks of ``/readyz``."""

NOT_SELECTED: Mapping[CandidateOutcome, str] = {
    CandidateOutcome.ASKED: "Asked for its resources.",
    CandidateOutcome.SELECTED: "Would have been selected, but the round failed.",
    CandidateOutcome.DEADLINE: "Too slow: would not finish before the deadline.",
    CandidateOutcome.NO_DATA: "Has no samples to train on.",
    CandidateOutcome.NO_REPORT: "Has not reported recently.",
    CandidateOutcome.BUSY: "Busy in a round of another task.",
    CandidateOutcome.COOLDOWN: "Did not deliver in its last rounds: not drawn for some rounds.",
    CandidateOutcome.MAX_SHARE: "Has had its largest share of the task's rounds.",
    CandidateOutcome.TOO_SLOW: "Too slow: the round would last longer than 18 years.",
    CandidateOutcome.NOT_CHOSEN: "Would have fitted, but the policy chose others.",
}

_OUTCOMES: Mapping[str, str] = {
    CandidateOutcome.DEADLINE: "too slow",
    CandidateOutcome.TOO_SLOW: "far too slow",
}


def outcome_name(outcome: str) -> str:
    """The outcome of a slot or of a candidate, in lower case and in words."""
    return _OUTCOMES.get(outcome, outcome.lower().replace("_", " "))


_LABELS = {
    "name": "Name",
    "model": "Network",
    "own_model": "Own network",
    "dataset": "Data set",
    "own_dataset": "Own data set",
    "policy": "Policy",
    "request_fraction": "Share of clients asked",
    "round_deadline_s": "Round deadline",
    "min_round_deadline_s": "Shortest round deadline",
    "final_deadline_s": "End after",
    "max_rounds": "End after rounds",
    "target_accuracy": "End at accuracy",
    "target_metric": "Accuracy measured by",
    "auto_advance": "Open the next round automatically",
    "allow_busy_clients": "Select clients that are busy in another task",
    "min_clients": "Fewest clients",
    "min_updates": "Fewest updates",
    "min_resource_blocks": "Fewest resource blocks",
    "aggregation": "Aggregation",
    "selection_s": "Time for selection",
    "aggregation_s": "Time for aggregation",
    "report_max_age_s": "Oldest usable report",
    "report_window_s": "Wait for reports",
    "topk_fraction": "Share of differences sent",
    "max_update_norm": "Largest update norm",
    "learning_rate_decay_s": "Learning rate decays every",
    "local_epochs": "Local epochs",
    "idle_timeout_s": "Longest silence",
    "slot_grace_s": "Slot grace time",
    "deadline_slack": "Deadline slack",
    "max_share": "Largest share of rounds",
    "cap_reports": "Limit reports to plausible figures",
}
_UNITS = {"_s": "s", "_bytes": "bytes", "_fraction": "%", "_share": "%", "_accuracy": "%", "_slack": "%"}


def unit_of(name: str) -> str:
    """The unit in which people give a field; shares are given in percent."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def as_share(name: str, number: float | str) -> float | str:
    """A number as people enter it: what they give in percent becomes a share."""
    return round(number / 100, 12) if unit_of(name) == "%" and not isinstance(number, str) else number


def label_of(name: str) -> str:
    """A field of a task, without its unit."""
    if name in _LABELS:
        return _LABELS[name]
    for ending in _UNITS:
        name = name.removesuffix(ending)
    return name.replace("_", " ").capitalize()


def label_with_unit(name: str) -> str:
    """A field of a task as forms and pages show it."""
    unit = unit_of(name)
    return f"{label_of(name)} ({unit})" if unit else label_of(name)


def with_labels(text: str) -> str:
    """A message of the API in which fields go by their labels."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: label_of(found[0]).lower(), text)


_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}

_COMPLAINTS = {
    "missing": "must be given",
    "int_": "must be a whole number",
    "float_": "must be a number",
    "finite_number": "must be a number",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "contains characters that are not allowed",
    "literal_error": "must be {expected}",
}
"""By how the kind of an error begins."""


def explain(name: str, error: Mapping[str, Any]) -> str:
    """What is wrong with a field, by an error of pydantic: ``Round deadline must be more than 0 s``."""
    kind, context = error["type"], error.get("ctx", {})
    label, unit = label_of(name), unit_of(name)
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = context[key] * 100 if unit == "%" else context[key]
        return f"{label} must be {words} {limit:g} {unit}".rstrip()
    for start, words in _COMPLAINTS.items():
        if kind.startswith(start):
            return f"{label} {words.format_map(context)}"
    reason = with_labels(error["msg"].removeprefix("Value error, "))
    if reason.startswith(label.lower()):
        return reason[0].upper() + reason[1:]
    return f"{label}: {reason}"


_EVENTS = {
    "task.initializing": "Task created",
    "task.ready": "Task ready: it has its initial model",
    "task.running": "Task started",
    "task.changed": "Settings changed: {changed}",
    "task.deleted": "Task deleted",
    "model.created": "Model version {version} created",
    "model.evaluated": "Model version {version} evaluated: accuracy {accuracy:.1%}",
    "model.not_evaluated": "Model version {version} not evaluated: {error}",
    "update.received": "Update received",
    "update.rejected": "Update rejected: {reason}",
    "update.late": "Update came too late",
    "channel.lapsed": "Grant of the channel lapsed",
    "channel.replaced": "Selected in the place of another client",
    "clients.enrolled": "Clients enrolled: {number}",
    "client.removed": "Client removed",
    "key.revoked": "Key {key} revoked",
    "cell.added": "Cell {cell_id} added",
    "cell.changed": "Cell {cell_id} changed",
    "cell.removed": "Cell {cell_id} removed",
}


def describe_event(event: Event, key_names: Mapping[str, str]) -> str:
    """An event in a sentence; one that has no words of its own goes by its kind."""
    thing, _, what = event.kind.partition(".")
    what = what.replace("_", " ")
    sentence = _EVENTS.get(event.kind)
    if sentence is None and thing == "round":
        sentence = "Round {number} " + what
    if sentence is None and thing == "job":
        sentence = "Job {job} " + what + (": {error}" if "error" in event.data else "")
    try:
        data = {**event.data, "job": str(event.data.get("job")).replace("_", " ")}
        if "key_id" in event.data:
            data["key"] = key_names.get(event.data["key_id"], event.data["key_id"])
        return (sentence or f"{thing} {what}".capitalize()).format_map(data)
    except (KeyError, TypeError, ValueError):  # an event of an older version
        return f"{thing} {what}".capitalize()


EVENT_GROUPS: Mapping[str, str] = {
    "task": "Tasks",
    "round": "Rounds",
    "update": "Updates",
    "channel": "Channel",
    "model": "Models",
    "training": "Training",
    "job": "Jobs",
    "client": "Clients",
    "key": "Keys",
    "cell": "Cells",
}
"""The kinds of events by what they are about."""

_BAD_EVENTS = ("failed", "rejected", "not_evaluated", "revoked", "expired")
_WARNING_EVENTS = ("late", "declined", "lapsed", "refused", "cancelled", "removed", "deleted")
_GOOD_EVENTS = ("aggregated", "finished", "received", "evaluated", "done")


def event_tone(kind: str) -> str:
    """The colour of an event."""
    what = kind.partition(".")[2]
    if what in _BAD_EVENTS:
        return "bad"
    if what in _GOOD_EVENTS:
        return "ok"
    return "warning" if what in _WARNING_EVENTS else "info"
