"""Additions to the OpenAPI document that FastAPI derives: security schemes, problems, links, limits."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html, get_swagger_ui_oauth2_redirect_html
from fastapi.responses import HTMLResponse

from operator_api.problems import status_of
from operator_api.resource_reports import ReportLimits
from operator_api.security import LOCATION, OAUTH_SCHEME, SECURITY_SCHEME, UNAUTHENTICATED_DETAIL
from services.access import Scope
from services.contract.common import PROBLEM_MEDIA_TYPE, InvalidParam, Problem
from services.errors import (
    FedCSError,
    NotAllowedError,
    StorageFullError,
    TooLargeError,
    TooManyRequestsError,
)

Responses = dict[int | str, dict[str, Any]]

UNAUTHENTICATED = Problem(
    title="Unauthorized", status=401, cause="UNAUTHENTICATED", detail=UNAUTHENTICATED_DETAIL
)
MALFORMED_JSON = Problem(
    title="Bad Request",
    status=400,
    cause="MALFORMED_JSON",
    detail="The body is not JSON: expected value at line 1 column 1.",
)
UNSUPPORTED_MEDIA_TYPE = Problem(
    title="Unsupported Media Type",
    status=415,
    cause="UNSUPPORTED_MEDIA_TYPE",
    detail="Send JSON, with the header Content-Type: application/json.",
)
INVALID_REQUEST = Problem(
    title="Unprocessable Entity",
    status=422,
    cause="INVALID_REQUEST",
    detail="/throughput_bps: Input should be greater than 0.",
    invalid_params=[InvalidParam(param="/throughput_bps", reason="Input should be greater than 0")],
)
TOO_SLOW = Problem(
    title="Request Timeout",
    status=408,
    cause="REQUEST_TIMEOUT",
    detail="The body has to come at 1024 bytes per second, with pauses up to 30 s.",
)
RANGE_NOT_SATISFIABLE = Problem(
    title="Requested Range Not Satisfiable",
    status=416,
    cause="RANGE_NOT_SATISFIABLE",
    detail="The file has 18300000 bytes.",
)
NOT_READY = Problem(
    title="Service Unavailable",
    status=503,
    cause="NOT_READY",
    detail="disk: 1048576 bytes free, 268435456 wanted",
)

INTRODUCTION = """
Federated learning over a cellular network: the service selects clients that finish in time, gives each a slot
on the uplink, and averages their updates.

## Authentication
Send `Authorization: Bearer KEY` with every request. Operator keys look (`read`) or act (`manage`); a client
key acts for its own client only. `x-access` of each operation says which keys it takes. `POST /oauth2/token`
gives a short-lived token for a key.

## A round in six calls
1. `POST /clients` enrols a device and answers its key (operator).
2. `POST /reports` reports the device's uplink, processor and data (device).
3. `POST /tasks`, then `POST /rounds` opens a round: clients are selected and scheduled (operator).
4. `GET /assignments` says what to do and when; `GET /rounds/{round_id}/model` is the model to train (device).
5. `PUT /rounds/{round_id}/updates/{client_id}` uploads the trained model, a safetensors file (device).
6. `GET /tasks/{task_id}/models/latest` is the aggregated model (operator).

## Clocks
Times are in seconds, timestamps RFC 3339 in UTC. A device needs no correct clock: `starts_in_s` and
`ends_in_s` count from the answer. On a task with a `wall` clock the service's own clock decides. On a
`simulated` clock, times come with the requests.

## Errors
Errors are `application/problem+json` (RFC 9457): `detail` is for people, `cause` for programs,
`invalid_params` names each wrong field. 429 and 503 have `Retry-After`: wait, then send the request again.

## Creating things
Send an `Idempotency-Key` with a POST that creates: the same key and body gives the first answer again.
`Location` says where the new thing is. An unknown field or query parameter is refused (422).

## Lists
Lists have `page` and `per_page`. `Link` names the other pages, `X-Total-Count` the number of all items. Every
GET can also be sent as HEAD, but for `/events` and `/assignments`.
"""

TAGS = [
    {"name": "clients", "description": "Enrol devices, look at them, remove them, and manage their keys."},
    {"name": "reports", "description": "What devices report about their uplink, processor and data."},
    {"name": "tasks", "description": "What is trained, on which terms, how it goes, and the models."},
    {"name": "rounds", "description": "Open rounds, look at their schedules, close them."},
    {"name": "devices", "description": "What a device calls in a round: assignments, the model, its update."},
    {"name": "cells", "description": "Cells, their resource blocks, and which round holds which."},
    {"name": "trainings", "description": "Workers train for simulated devices."},
    {"name": "planning", "description": "Select and schedule without storing anything."},
    {"name": "registries", "description": "The names that tasks and plans can use, with their parameters."},
    {"name": "events", "description": "Every change of state, as it happens."},
    {"name": "keys", "description": "Operator keys, and tokens for keys."},
    {"name": "health", "description": "Liveness, readiness and metrics."},
]
"""In the order of use."""

GUARDED = (UNAUTHENTICATED, NotAllowedError, INVALID_REQUEST, TooManyRequestsError, NOT_READY)
"""What any operation with a key can answer."""
JSON_BODY = (
    MALFORMED_JSON,
    TOO_SLOW,
    TooLargeError,
    UNSUPPORTED_MEDIA_TYPE,
    StorageFullError,
)
"""What any operation with a JSON body can answer."""
NO_CONTENT_ENCODING = Problem(
    title="Unsupported Media Type",
    status=415,
    cause="UNSUPPORTED_MEDIA_TYPE",
    detail="Send the body as it is: no Content-Encoding is taken.",
)
MODEL_IN_BODY = (TOO_SLOW, TooLargeError, NO_CONTENT_ENCODING, StorageFullError)
"""What any operation with a model as its body can answer."""


def problems(*causes: Problem | type[FedCSError]) -> Responses:
    """Response documentation for these problems, grouped by status."""
    responses: Responses = {}
    for example in map(_as_problem, causes):
        documented = responses.setdefault(
            example.status,
            {
                "description": HTTPStatus(example.status).phrase,
                "content": {
                    PROBLEM_MEDIA_TYPE: {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        examples_by_cause = documented["content"][PROBLEM_MEDIA_TYPE]["examples"]
        examples_by_cause[example.cause] = {"value": example.model_dump()}
    return responses


def links(status: int, *targets: tuple[str, Mapping[str, str]]) -> Responses:
    """Documentation of what can follow an answer of this status.

    Each target is an operation such as ``GET /tasks/{task_id}``, with its parameters by name; values are
    OpenAPI runtime expressions.
    """
    return {
        status: {
            "links": {
                _link_name(operation): {"operationId": operation, "parameters": dict(parameters)}
                for operation, parameters in targets
            }
        }
    }


def together(*documented: Responses) -> Responses:
    """Merge the documentation of responses; entries of the same status are combined."""
    responses: Responses = {}
    for part in documented:
        for status, response in part.items():
            responses[status] = responses.get(status, {}) | response
    return responses


def install_docs(app: FastAPI, root: str) -> None:
    """Serve Swagger UI from the files of ``fastapi_offline``, with a style sheet that knows dark colours."""
    redirect = app.swagger_ui_oauth2_redirect_url
    assert redirect is not None

    @app.get(f"{root}/docs", include_in_schema=False)
    async def show_docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title=f"{app.title} - API",
            oauth2_redirect_url=redirect,
            swagger_js_url=f"{root}/static-docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/dashboard/static/docs.css",
            swagger_favicon_url=f"{root}/static-docs/favicon.png",
        )

    @app.get(redirect, include_in_schema=False)
    async def finish_docs_login() -> HTMLResponse:
        return get_swagger_ui_oauth2_redirect_html()


def install_openapi(app: FastAPI, root: str, report_limits: ReportLimits) -> None:
    """Add the schema that ``problems`` refers to, where ``links`` lead, how to send a key, and limits."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        document = derive()
        components = document.setdefault("components", {})
        components["securitySchemes"] = _security_schemes(root)
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = components.setdefault("schemas", {})
        schemas |= schema.pop("$defs")
        schemas["Problem"] = schema
        report_limits.add_to_schema(schemas["ReportRequest"])
        _resolve_links(document, root)
        _describe_locations(document)
        for described in schemas.values():
            for example in described.get("examples", ()):
                _restore_nulls(example, described, schemas)
        # FastAPI's own form of a validation error is never sent.
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _security_schemes(root: str) -> dict[str, Any]:
    return {
        SECURITY_SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "An operator's or a client's key; `x-access` says whose an operation takes.",
        },
        OAUTH_SCHEME: {
            "type": "oauth2",
            "description": "A token for a key. `client_id` is the id of the key, or `operator` for "
            "`FEDCS_OPERATOR_KEY`; `client_secret` is the key.",
            "flows": {
                "clientCredentials": {
                    "tokenUrl": f"{root}/oauth2/token",
                    "scopes": {
                        Scope.READ.value: "Look, as an operator.",
                        Scope.MANAGE.value: "Act, as an operator; looking is included.",
                        Scope.CLIENT.value: "Act for one client.",
                    },
                }
            },
        },
    }


def _link_name(operation: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", operation).strip("_")


def _resolve_links(document: dict[str, Any], root: str) -> None:
    """Name the operations that links lead to by the ids that FastAPI gave them."""
    ids = {
        f"{method.upper()} {path.removeprefix(root)}": operation["operationId"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                for link in response.get("links", {}).values():
                    if link["operationId"] not in ids.values():  # the document is kept, and comes here again
                        link["operationId"] = ids[link["operationId"]]


def _describe_locations(document: dict[str, Any]) -> None:
    """Document the header ``Location`` of every operation that creates something."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if template := operation.pop(LOCATION, None):
                headers = operation["responses"]["201"].setdefault("headers", {})
                text = f"Where it is found: `{template}`."
                headers["Location"] = {"description": text, "schema": {"type": "string"}}


def _restore_nulls(example: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> None:
    """Put back what FastAPI leaves out of examples: fields that are null."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if isinstance(example, list):
        for item in example:
            _restore_nulls(item, schema.get("items", {}), schemas)
    for choice in schema.get("anyOf", ()):
        _restore_nulls(example, choice, schemas)
    if isinstance(example, dict) and "properties" in schema:
        for name in schema.get("required", ()):
            example.setdefault(name, None)
        for name, described in schema["properties"].items():
            if name in example:
                _restore_nulls(example[name], described, schemas)


def _as_problem(cause: Problem | type[FedCSError]) -> Problem:
    if isinstance(cause, Problem):
        return cause
    status = status_of(cause)
    return Problem(title=status.phrase, status=status, cause=cause.cause, detail=cause.example)
