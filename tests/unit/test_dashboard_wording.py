"""The words of the pages, the form of a task, and one colour scheme for pages and pictures."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import operator_api
import operator_api.dashboard
from operator_api.dashboard.rendering import as_ago, as_bytes
from operator_api.dashboard.task_form import FIELDS, GROUPS, TaskForm, read_task
from operator_api.dashboard.wording import (
    NOT_SELECTED,
    describe_event,
    outcome_name,
    policy_name,
    with_labels,
)
from operator_api.planning import plan_round
from services import gantt
from services.contract.plans import PlanRequest
from services.contract.tasks import TaskRequest
from services.domain.rounds import CandidateOutcome
from services.storage.events import Event
from tests.integration.plan_requests import cell

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_pages_and_pictures_have_the_same_colours() -> None:
    css = Path(operator_api.dashboard.__file__).parent / "static" / "dashboard.css"
    by_day = dict(re.findall(r"--([\w-]+): (#\w+);", css.read_text().partition("@media")[0]))
    drawn = {
        "distribution": gantt.DISTRIBUTION_COLOUR,
        "update": gantt.UPDATE_COLOUR,
        "upload": gantt.UPLOAD_COLOUR,
        "deadline": gantt.DEADLINE_COLOUR,
    }
    assert {name: by_day[name] for name in drawn} == drawn
    plan = Path(operator_api.__file__).parent / "templates" / "plan.html"
    assert set(re.findall(r"#[0-9a-f]{6}", plan.read_text())) <= set(by_day.values())


@pytest.mark.parametrize(("clients", "axes"), [(15, 1), (16, 2)])
def test_a_long_chart_has_its_axis_and_legend_above_too(clients: int, axes: int) -> None:
    request = PlanRequest.model_validate(cell(clients) | {"policy": "fl"})
    chart = gantt.draw_gantt(request, plan_round(request), "svg").decode()
    assert chart.count("<!-- round time (s) -->") == axes
    assert chart.count("<!-- distribution -->") == axes


def test_a_long_id_is_cut_at_its_front() -> None:
    request = PlanRequest.model_validate(cell(1) | {"policy": "fl"})
    slot = plan_round(request).slots[0].model_copy(update={"client_id": "a" * 23 + "$1"})
    assert gantt.row_label(slot) == "1  …" + "a" * 21 + r"\$1"


def test_every_field_of_a_task_is_in_the_form() -> None:
    special = {"policy_parameters", "aggregation_parameters", "cells"}
    assert TaskRequest.model_fields.keys() - special <= FIELDS.keys()
    names = [field.name for group in GROUPS for field in (*group.common, *group.more)]
    assert len(names) == len(set(names))


def test_fields_of_clients_and_uploads_are_in_their_groups() -> None:
    group_of = {field.name: group.title for group in GROUPS for field in group.more}
    assert [group_of[name] for name in ("max_share", "cooldown", "dispatch", "weight_decay")] == [
        "Who takes part",
        "Who takes part",
        "Radio and time",
        "Learning",
    ]


def test_the_form_as_it_is_first_shown_asks_for_the_paper_s_task() -> None:
    shown = {name: text for name, text in TaskForm().values.items() if FIELDS[name].kind != "check"}
    asked = read_task(shown)
    assert isinstance(asked, TaskRequest)
    assert asked == TaskRequest(round_deadline_s=180, seed=asked.seed)


@pytest.mark.parametrize(
    ("entered", "field", "reason"),
    [
        ({"round_deadline_s": "0"}, "round_deadline_s", "Round deadline must be more than 0 s"),
        ({"request_fraction": "101"}, "request_fraction", "Share of clients asked must be at most 100 %"),
        ({"local_epochs": "1.5"}, "local_epochs", "Local epochs must be a whole number"),
        ({"local_epochs": ""}, "local_epochs", "Local epochs must be a whole number"),
        ({"name": "x" * 129}, "name", "Name must have at most 128 characters"),
        ({"labels": "bus"}, "labels", "Labels must be pairs such as vehicle=bus, shift=night"),
        (
            {"min_resource_blocks": "11"},
            "min_resource_blocks",
            "Fewest resource blocks is more than resource blocks",
        ),
        ({"own_model": "a b"}, "own_model", "Own network contains characters that are not allowed"),
        ({"own_dataset": "nope"}, "own_dataset", "Own data set: unknown data set"),
        ({"max_share": "0"}, "max_share", "Largest share of rounds must be more than 0 %"),
        ({"deadline_slack": "-1"}, "deadline_slack", "Deadline slack must be at least 0 %"),
        ({"idle_timeout_s": "0"}, "idle_timeout_s", "Longest silence must be more than 0 s"),
        (
            {"aggregation": "weighted", "aggregation.weighted.weight_cap_factor": "-2"},
            "aggregation.weighted.weight_cap_factor",
            "Weight cap factor must be ",
        ),
        ({"policy": "best"}, "policy", "Policy: unknown policy"),
    ],
)
def test_what_is_wrong_is_said_in_words_at_its_field(
    entered: dict[str, str], field: str, reason: str
) -> None:
    refused = read_task({"round_deadline_s": "60"} | entered)
    assert isinstance(refused, TaskForm)
    assert list(refused.errors) == [field]
    assert refused.errors[field].startswith(reason)
    assert refused.values[field] == entered[field], "it is shown again"


def test_parameters_of_others_and_emptied_fields() -> None:
    form = {
        "round_deadline_s": "60",
        "aggregation": "weighted",
        "aggregation.weighted.weight_cap_factor": "",
        "update_clip_factor": "",
        "own_model": "my.package:Net",
        "model": "paper-cnn",
    }
    asked = read_task(form)
    assert isinstance(asked, TaskRequest)
    assert asked.aggregation_parameters == {"weight_cap_factor": None}
    assert (asked.update_clip_factor, asked.model) == (None, "my.package:Net")


def test_events_in_sentences() -> None:
    assert describe_event(Event("round.aggregated", NOW, data={"number": 3}), {}) == "Round 3 aggregated"
    assert describe_event(Event("model.evaluated", NOW, data={"version": 2, "accuracy": 0.5}), {}) == (
        "Model version 2 evaluated: accuracy 50.0%"
    )
    assert describe_event(Event("job.failed", NOW, data={"job": "train_client", "error": "{x}"}), {}) == (
        "Job train client failed: {x}"
    )
    assert describe_event(Event("round.aggregated", NOW), {}) == "Round aggregated", "of an older version"
    assert describe_event(Event("something.new_here", NOW), {}) == "Something new here"
    revoked = Event("key.revoked", NOW, data={"key_id": "key-1"})
    assert describe_event(revoked, {"key-1": "grafana"}) == "Key grafana revoked"
    assert describe_event(revoked, {}) == "Key key-1 revoked"


def test_words() -> None:
    assert set(NOT_SELECTED) == set(CandidateOutcome)
    assert policy_name("fedcs") == "FedCS (recommended)"
    assert policy_name("somebody's") == "somebody's"
    assert [outcome_name(code) for code in ("DEADLINE", "NO_DATA", "received")] == [
        "too slow",
        "no data",
        "received",
    ]
    assert with_labels("min_resource_blocks is more") == "fewest resource blocks is more"
    assert [as_bytes(size) for size in (12, 4_580_000)] == ["12 B", "4.58 MB"]
    now = datetime.now(UTC)
    ages = [as_ago(now - timedelta(seconds=age)) for age in (0, 30.5, 90, 7300, 200_000)]
    assert ages == ["just now", "30 s ago", "1 min ago", "2 h ago", "2 d ago"]
