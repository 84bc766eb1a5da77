"""The what-if page against ``POST /plans`` for the same reports, and what it refuses."""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from operator_api.dashboard.what_if import InvalidFieldError, plan_what_if, read_what_if
from operator_api.dashboard.wording import label_of
from services.storage.database import Database
from services.storage.migration import migrate
from tests.dashboard_session import csrf_token, logged_in
from tests.integration.cell import assert_problem, create_task, enrol, report, report_all, without_key
from tests.integration.plan_requests import cell
from tests.running_service import running_service

PAGE, DATA = "/dashboard/what-if", "/dashboard/data/what-if"
CLIENTS = 90


class Operator:
    """Somebody in front of the page."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self._token = csrf_token(client)

    def ask(self, **fields: object) -> dict[str, Any]:
        answer = self.client.post(DATA, data=fields, headers={"X-CSRF-Token": self._token})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def plan(self, **fields: object) -> dict[str, Any]:
        said = self.ask(**fields)
        assert said["errors"] == {}
        found: dict[str, Any] = said["found"]
        return found

    def errors(self, **fields: object) -> dict[str, str]:
        said = self.ask(**fields)
        assert said["found"] is None
        errors: dict[str, str] = said["errors"]
        return errors


@pytest.fixture(scope="module")
def planning_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("what-if")) as client:
        yield client


@pytest.fixture(scope="module")
def operator(planning_service: httpx.Client) -> Iterator[Operator]:
    with logged_in(planning_service) as client:
        yield Operator(client)


@pytest.fixture(scope="module")
def reports(planning_service: httpx.Client, operator: Operator) -> list[dict[str, Any]]:
    """The newest fresh report of each client, in the order of enrolment; two clients have none."""
    assert operator.plan() == {"asked": 0, "candidates": 0, "plan": None}, "nobody is enrolled"
    clients = list(enrol(planning_service, CLIENTS))
    assert operator.plan() == {"asked": 9, "candidates": 0, "plan": None}, "nobody has reported"
    drawn = cell(CLIENTS)["candidates"]
    drawn[3]["data_samples"] = 0
    newest = [item | {"client_id": client_id} for client_id, item in zip(clients, drawn, strict=True)]
    report_all(planning_service, clients, throughput_bps=9e9)
    old = {"observed_at": (datetime.now(UTC) - timedelta(minutes=61)).isoformat()}
    for stale in newest[-2:]:
        planning_service.delete(f"/clients/{stale['client_id']}")
        planning_service.post("/clients", json={"client_id": stale["client_id"]})
        report(planning_service, **stale, **old)
    of_one_task = create_task(planning_service)["task_id"]
    report(planning_service, clients[0], throughput_bps=7e9, task_id=of_one_task)
    sent = planning_service.post("/reports/batch", json={"reports": newest[:-2]})
    assert sent.json()["stored"] == CLIENTS - 2
    return newest


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"policy": "optimal", "round_deadline_s": 400},
        {"policy": "fedlim", "seed": 7},
        {"policy": "fl", "seed": 3},
        {"round_deadline_s": 90.5, "resource_blocks": 25, "selection_s": 3, "aggregation_s": 4.5},
        {"model_size_bytes": 2_000_000, "local_epochs": 2},
        {"upload_size_bytes": 2_000_000, "download_size_bytes": 9_000_000},
        {"round_deadline_s": 0.001},
    ],
)
@pytest.mark.parametrize("fraction", [1, 0.41])
def test_it_says_what_a_plan_for_the_same_reports_says(
    operator: Operator,
    planning_service: httpx.Client,
    reports: list[dict[str, Any]],
    terms: dict[str, Any],
    fraction: float,
) -> None:
    found = operator.plan(request_fraction=fraction * 100, **terms)
    asked = _draw(reports, fraction, terms.get("seed", 0))
    stale = [report_["client_id"] for report_ in reports[-2:]]
    candidates = [item for item in asked if item["client_id"] not in stale]
    assert (found["asked"], found["candidates"]) == (len(asked), len(candidates))

    request = {"round_deadline_s": 180, "model_size_bytes": 18_300_000, **terms, "candidates": candidates}
    planned = planning_service.post("/plans", json=request).json()
    plan = found["plan"]
    assert plan["selected"] == len(planned["slots"])
    assert (plan["total_s"], plan["upper_bound"]) == (planned["total_s"], planned["upper_bound"])
    for name, column in plan["slots"].items():
        assert column == [slot[name] for slot in planned["slots"]]
    assert sum(plan["not_selected"].values()) == len(planned["not_selected"])

    curve = dict(zip(found["curve"]["deadline_s"], found["curve"]["clients"], strict=True))
    assert len(curve) == 25
    assert curve[request["round_deadline_s"]] == plan["selected"]
    for deadline_s in list(curve)[::6]:
        other = planning_service.post("/plans", json=request | {"round_deadline_s": deadline_s}).json()
        assert curve[deadline_s] == len(other["slots"])


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("round_deadline_s", "0"),
        ("round_deadline_s", ""),
        ("round_deadline_s", "nan"),
        ("round_deadline_s", "1e300"),
        ("resource_blocks", "0"),
        ("resource_blocks", "1.5"),
        ("resource_blocks", "1001"),
        ("model_size_bytes", "-1"),
        ("local_epochs", "many"),
        ("selection_s", "-0.1"),
        ("aggregation_s", "9" * 40),
        ("seed", "-1"),
        ("policy", "best"),
    ],
)
def test_what_post_plans_refuses_is_refused_at_its_field(
    operator: Operator, planning_service: httpx.Client, field: str, value: str
) -> None:
    (refused,) = operator.errors(**{field: value}).items()
    try:
        number: object = float(value)
    except ValueError:
        number = value
    if not isinstance(number, float) or math.isfinite(number):  # JSON has no others
        request = cell(1) | {field: number}
        problem = assert_problem(planning_service.post("/plans", json=request), 422, "INVALID_REQUEST")
        assert [param["param"] for param in problem["invalid_params"]] == [f"/{field}"]
    assert refused[0] == field
    assert refused[1].startswith(label_of(field)), "it names the field as the form does"
    page = operator.client.get(PAGE, params={field: value})
    assert page.status_code == 422
    assert re.search(rf'id="{field}-error">[^<]', page.text)


@pytest.mark.usefixtures("reports")
def test_what_only_this_page_refuses(operator: Operator) -> None:
    for wrong in ("0", "101", "-1", "all"):
        assert list(operator.errors(request_fraction=wrong)) == ["request_fraction"]
    several = operator.errors(request_fraction="200", seed="x", local_epochs="0")
    assert sorted(several) == ["local_epochs", "request_fraction", "seed"]
    plan = operator.plan(candidates="[]", report_resource_blocks="1", surprise="!", request_fraction=100)
    assert plan == operator.plan(request_fraction=100), "other fields are nobody's"


@pytest.mark.usefixtures("reports")
def test_without_scripts_the_page_has_the_answer(operator: Operator) -> None:
    terms = {"request_fraction": "100", "round_deadline_s": "240", "policy": "optimal"}
    plan = operator.plan(**terms)["plan"]
    page = operator.client.get(PAGE, params=terms).text
    assert f'id="selected">{plan["selected"]}<' in page
    assert f'id="total">{plan["total_s"]:.1f} s<' in page
    for client_id in plan["slots"]["client_id"]:
        assert client_id in page
    assert 'value="240"' in page
    assert '<option value="optimal" selected>' in page
    assert 'id="selected"><' in operator.client.get(PAGE).text, "nothing was asked for yet"


def test_more_clients_than_are_drawn_here(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    migrate(database)
    with database.unit_of_work() as uow:
        uow.clients.add({f"c{number}": {} for number in range(10_001)}, datetime.now(UTC))
        uow.commit()
    all_of_them, _ = read_what_if({"request_fraction": "100"})
    assert all_of_them is not None
    with pytest.raises(InvalidFieldError, match=r"of 10,001 clients .* 10,000") as refused:
        plan_what_if(database, all_of_them)
    assert refused.value.name == "request_fraction"
    fewer, _ = read_what_if({"request_fraction": "99.99"})
    assert fewer is not None
    assert plan_what_if(database, fewer) == {"asked": 10_000, "candidates": 0, "plan": None}
    database.close()


def test_who_may_ask(operator: Operator, planning_service: httpx.Client) -> None:
    assert_problem(operator.client.post(DATA, data={}), 403, "FORBIDDEN")
    assert_problem(operator.client.post(DATA, headers={"X-CSRF-Token": "0" * 64}), 403, "FORBIDDEN")
    assert_problem(operator.client.get(DATA), 405, "METHOD_NOT_ALLOWED")
    with without_key(planning_service) as stranger:
        assert_problem(stranger.post(DATA), 401, "UNAUTHENTICATED")
        assert stranger.get(PAGE).headers["location"] == "/dashboard/login?next=%2Fdashboard%2Fwhat-if"
    key = planning_service.post("/keys", json={"scope": "read"}).json()["api_key"]
    with logged_in(planning_service, key) as reader:
        assert Operator(reader).ask()["errors"] == {}, "nothing is changed"


def _draw(clients: list[dict[str, Any]], fraction: float, seed: int) -> list[dict[str, Any]]:
    """As the first round of a task draws."""
    number = math.ceil(round(len(clients) * fraction, 9))
    places = np.random.default_rng([seed, 1]).choice(len(clients), number, replace=False)
    return [clients[place] for place in places.tolist()]
