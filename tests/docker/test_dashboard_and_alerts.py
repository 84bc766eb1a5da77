"""What the Grafana dashboard and the alerts of Prometheus ask for is there, on a real service."""

import json
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboard_tasks import task_with_rounds
from tests.docker.dockerfile import ROOT
from tests.integration.rounds_setup import site

_DASHBOARD = ROOT / "docker/grafana/dashboards/fedcs.json"
_ALERTS = ROOT / "docker/prometheus/alerts.yml"
_PROMETHEUS = ROOT / "docker/prometheus/prometheus.yml"
_ADDED_BY_PROMETHEUS = {"job", "instance"}
_NOT_YET = {"status"}
"""Labels whose values depend on what has happened: a service that is well has no 5xx."""


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(_DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return panels


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(_ALERTS.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _expressions() -> list[str]:
    asked = [target["expr"] for panel in _panels() for target in panel["targets"]]
    return asked + [rule["expr"] for rule in _rules()]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, str]]]:
    """What a real service exposes once a task of it has been evaluated."""
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as here:
        task_with_rounds(here, [0.5])
        assert here.service.get("/readyz").status_code == 200
        return list(_exposed(here.service))


def _exposed(service: httpx.Client) -> Iterator[tuple[str, dict[str, str]]]:
    yield "up", {}  # which Prometheus itself makes for every target
    for family in text_string_to_metric_families(service.get("/metrics").text):
        for sample in family.samples:
            yield sample.name, sample.labels


def _selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Every metric that an expression names."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _selectors(node.lhs)
        yield from _selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _selectors(argument)
    elif isinstance(node, (promql_parser.AggregateExpr, promql_parser.ParenExpr, promql_parser.UnaryExpr)):
        yield from _selectors(node.expr)
    else:
        assert isinstance(node, promql_parser.NumberLiteral), node


@pytest.mark.parametrize("expression", _expressions())
def test_what_is_asked_for_is_exposed(expression: str, series: list[tuple[str, dict[str, str]]]) -> None:
    selectors = list(_selectors(promql_parser.parse(expression)))
    assert selectors
    for selector in selectors:
        assert _matches(selector, series), str(selector)


def _matches(selector: Any, series: list[tuple[str, dict[str, str]]]) -> bool:
    candidates = [labels for name, labels in series if name == selector.name]
    for matcher in selector.matchers.matchers:
        if matcher.name in _ADDED_BY_PROMETHEUS:
            continue
        candidates = [labels for labels in candidates if matcher.name in labels]
        if matcher.op == promql_parser.MatchOp.Equal and matcher.name not in _NOT_YET:
            candidates = [labels for labels in candidates if labels[matcher.name] == matcher.value]
    return bool(candidates)


@pytest.mark.parametrize("expression", ["fedcs_round", 'fedcs_jobs{state="idle"}', 'fedcs_jobs{kind="x"}'])
def test_what_is_not_exposed_would_have_been_found(
    expression: str, series: list[tuple[str, dict[str, str]]]
) -> None:
    (selector,) = _selectors(promql_parser.parse(expression))
    assert not _matches(selector, series)


def test_every_metric_of_ours_is_on_the_dashboard(series: list[tuple[str, dict[str, str]]]) -> None:
    asked = {
        str(selector.name)
        for panel in _panels()
        for target in panel["targets"]
        for selector in _selectors(promql_parser.parse(target["expr"]))
    }
    ours = {name for name, _ in series if name.startswith("fedcs_") and not name.endswith("_created")}
    families = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in ours}
    assert {name for name in families if not any(item.startswith(name) for item in asked)} == set()


def test_panels_do_not_lie_on_each_other() -> None:
    for item, other in combinations([panel["gridPos"] for panel in _panels()], 2):
        beside = item["x"] + item["w"] <= other["x"] or other["x"] + other["w"] <= item["x"]
        above = item["y"] + item["h"] <= other["y"] or other["y"] + other["h"] <= item["y"]
        assert beside or above
    assert len({panel["id"] for panel in _panels()}) == len(_panels())


def test_panels_ask_the_data_source_that_is_set_up() -> None:
    file = ROOT / "docker/grafana/provisioning/datasources/prometheus.yaml"
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    asked = [panel["datasource"] for panel in _panels()]
    asked += [target["datasource"] for panel in _panels() for target in panel["targets"]]
    assert asked
    assert all(item == {"type": source["type"], "uid": source["uid"]} for item in asked)


def test_every_alert_says_what_it_means() -> None:
    assert len({rule["alert"] for rule in _rules()}) == len(_rules())
    for rule in _rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]


def test_prometheus_reads_the_alerts_and_the_api() -> None:
    config = yaml.safe_load(_PROMETHEUS.read_text())
    assert [(_PROMETHEUS.parent / name) for name in config["rule_files"]] == [_ALERTS]
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["api:8000"]}]
    expressions = " ".join(_expressions())
    assert f'job="{job["job_name"]}"' in expressions
