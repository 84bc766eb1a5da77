"""What schemathesis cannot know from the schema when it makes up requests; loaded by ``schemathesis.toml``.

Who calls: the operator, and where only a client may call, a client; for a token, the form says who asks.
``FEDCS_PREPARED`` tells what is there.
What a schema cannot say is seen to here for requests that are meant to be good, so that they get beyond the
checks of the request: ids exist, an ``Idempotency-Key`` is used once, the clients of one request differ, the
parts of a round fit into it, a model is a file of tensors with its digest. Requests meant to be bad are left
alone, and so are the ids of stateful tests, which are about those ids.
"""

import json
import os
import re
import uuid
from typing import Any

import schemathesis
from hypothesis import strategies as st

from tests.contract.known_resources import KnownResources
from tests.integration.cell import content_digest, make_model

CLIENT_OPERATIONS = {
    "GET /assignments",
    "PUT /rounds/{round_id}/updates/{client_id}",
    "POST /rounds/{round_id}/decline",
    "POST /rounds/{round_id}/ready",
    "POST /tasks/{task_id}/models/{version}/evaluations",
}
ENDING_CLIENT_KEYS = {"DELETE /clients/{client_id}", "DELETE /clients/{client_id}/keys"}
TOKEN_OPERATION = "POST /oauth2/token"
MAX_WAIT_S = 0.05
MAX_IDEMPOTENCY_KEY_LENGTH = 255
_THROUGHPUT_SOURCES = ("throughput_bps", "ul_nongbr_throughput_ue", "sinr", "rsrp")
_CELL_FIELDS = ("cells", "resource_blocks", "min_resource_blocks")
_AGGREGATION_FIELDS = ("aggregation_parameters", "update_encoding")
_DEADLINE_FIELDS = ("deadline_mode", "min_round_deadline_s")
_DISPATCH_FIELDS = ("dispatch", "planning_factor")
NOTHING = '{"client_keys": {}, "tasks": [], "rounds": {}}'

_known = KnownResources(json.loads(os.environ.get("FEDCS_PREPARED", NOTHING)))

# All have the same tensors: an update fits any task's model.
schemathesis.openapi.media_type("application/octet-stream", st.integers(0, 3).map(make_model))


@schemathesis.auth(refresh_interval=None)
class Keys:
    """The operator's key, or that of the client an operation is for."""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
        """The key to call with."""
        if context.operation.label in CLIENT_OPERATIONS:
            return _known.key_of(case.path_parameters.get("client_id"))
        return os.environ["FEDCS_OPERATOR_KEY"]

    def set(self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext) -> None:
        """Send it."""
        if context.operation.label != TOKEN_OPERATION:
            case.headers["Authorization"] = f"Bearer {data}"


@schemathesis.hook
def after_call(
    context: schemathesis.HookContext,  # noqa: ARG001
    case: schemathesis.Case[Any],
    response: schemathesis.Response,
) -> None:
    if response.status_code == 204 and case.operation.label in ENDING_CLIENT_KEYS:
        _known.forget_client(case.path_parameters["client_id"])
    elif response.status_code == 204 and case.operation.label == "DELETE /keys/{key_id}":
        _known.forget_key(case.path_parameters["key_id"])
    elif response.status_code == 204 and case.operation.label == "DELETE /tasks/{task_id}":
        _known.forget_task(case.path_parameters["task_id"])
    elif (
        response.status_code < 300
        and response.content
        and response.headers.get("content-type") == ["application/json"]
    ):
        _known.learn(response.json())


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext,  # noqa: ARG001
    case: schemathesis.Case[Any],
    kwargs: dict[str, Any],  # noqa: ARG001
) -> None:
    if case.operation.label == "GET /assignments" and isinstance(case.query, dict):
        _shorten_wait(case.query)
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.meta.phase.name != "stateful" and case.method != "DELETE":
        _put_real_ids(case)
    if "Idempotency-Key" in case.headers:
        fresh = f"{case.headers['Idempotency-Key']}-{uuid.uuid4()}"
        case.headers["Idempotency-Key"] = fresh[-MAX_IDEMPOTENCY_KEY_LENGTH:]
    if isinstance(case.body, bytes):
        case.headers.update(content_digest(case.body))
    if isinstance(case.body, dict):
        _make_consistent(case.operation.label, case.body)


def _shorten_wait(query: dict[str, Any]) -> None:
    """A long poll that is in order would take its minute, even if the request is bad in another way."""
    wait_s = query.get("wait_s")
    if isinstance(wait_s, (int, float)) and MAX_WAIT_S < wait_s <= 60:
        query["wait_s"] = MAX_WAIT_S
    if isinstance(wait_s, str) and re.fullmatch(r"[0-9.]+", wait_s) and MAX_WAIT_S < float(wait_s) <= 60:
        query["wait_s"] = str(MAX_WAIT_S)


def _put_real_ids(case: schemathesis.Case[Any]) -> None:
    named = case.path_parameters.get("client_id")
    _known.put_real_ids(case.path_parameters)
    if case.operation.label in ("POST /rounds", "POST /trainings") and isinstance(case.body, dict):
        _known.put_real_ids(case.body)
    if case.operation.label in CLIENT_OPERATIONS and case.path_parameters.get("client_id") != named:
        case.headers["Authorization"] = f"Bearer {_known.key_of(case.path_parameters['client_id'])}"


def _name_real_cell(body: dict[str, Any]) -> None:
    """In place of a cell that does not exist; a report also needs a measurement that is not null."""
    if body.get("cell_id") is not None:
        body["cell_id"] = "default"
    sources = ("throughput_bps", "ul_nongbr_throughput_ue", "sinr", "rsrp")
    if "data_samples" in body and all(body.get(name) is None for name in sources):
        body["throughput_bps"] = 1_000_000


def _make_consistent(operation: str, body: dict[str, Any]) -> None:
    if operation == "POST /tasks":
        planned_s = body.get("selection_s", 0) + body.get("aggregation_s", 0)
        if body.get("dataset") is None or ":" not in body["dataset"]:
            body["dataset"] = "generated"
        if ":" not in body.get("model", ""):
            body["model"] = "paper-cnn"
        if planned_s >= body["round_deadline_s"]:
            body["selection_s"] = body["aggregation_s"] = 0
        for name in _AGGREGATION_FIELDS:  # they depend on the aggregator
            body.pop(name, None)
        if "aggregation" in body:
            body["min_updates"] = 5  # Krum needs so many
        for name in (*_CELL_FIELDS, *_DISPATCH_FIELDS):  # they depend on the cells and on one another
            body.pop(name, None)
    if operation in ("POST /tasks", "POST /plans"):
        for name in _DEADLINE_FIELDS:  # they depend on one another and on the policy
            body.pop(name, None)
    if operation in ("POST /clients", "PATCH /clients/{client_id}", "POST /reports"):
        _name_real_cell(body)
    for item in body.get("clients", []) + body.get("reports", []):
        _name_real_cell(item)
    if operation == TOKEN_OPERATION:
        body |= {"client_id": "operator", "client_secret": os.environ["FEDCS_OPERATOR_KEY"]}
        if "client" in body.get("scope", ""):
            body["scope"] = "read manage"
    if operation in ("POST /clients", "POST /reports", "PATCH /clients/{client_id}"):
        _put_into_cell(body)
    if operation == "POST /reports":
        _give_throughput(body)
    if operation == "POST /reports/batch":
        for report in body["reports"]:
            _give_throughput(report)
            _put_into_cell(report)
    if operation == "POST /clients/batch":
        body["clients"] = _distinct(body["clients"])
        for client in body["clients"]:
            _put_into_cell(client)
    if operation == "POST /plans":
        body["candidates"] = _distinct(body["candidates"])


def _put_into_cell(body: dict[str, Any]) -> None:
    """A cell has to exist."""
    if body.get("cell_id") is not None:
        body["cell_id"] = "default"


def _give_throughput(report: dict[str, Any]) -> None:
    """One of the sources of the throughput is required."""
    if not any(report.get(source) for source in _THROUGHPUT_SOURCES):
        report["throughput_bps"] = 1e6


def _distinct(clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = {client.get("client_id") or id(client): client for client in clients}
    return list(by_id.values())
