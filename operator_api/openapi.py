"""What the OpenAPI document says beyond what FastAPI derives: keys, and problems with their examples."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from operator_api.security import OAUTH_SCHEME, SECURITY_SCHEME, UNAUTHENTICATED_DETAIL
from services.access import Scope
from services.contract.problems import PROBLEM_MEDIA_TYPE, InvalidParam, Problem
from services.errors import (
    ConflictError,
    FedCSError,
    ModelFileMissingError,
    ModelStoreAwayError,
    NotAllowedError,
    NotFoundError,
    StorageFullError,
    TooLargeError,
    TooManyRequestsError,
    UnacceptableError,
)

Responses = dict[int | str, dict[str, Any]]

STATUS_OF: dict[type[FedCSError], HTTPStatus] = {
    NotFoundError: HTTPStatus.NOT_FOUND,
    NotAllowedError: HTTPStatus.FORBIDDEN,
    ConflictError: HTTPStatus.CONFLICT,
    UnacceptableError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ModelStoreAwayError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooManyRequestsError: HTTPStatus.TOO_MANY_REQUESTS,
    ModelFileMissingError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageFullError: HTTPStatus.INSUFFICIENT_STORAGE,
}
"""What each kind of error means in HTTP."""

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

GUARDED = (UNAUTHENTICATED, NotAllowedError, TooManyRequestsError, NOT_READY)
"""What any operation with a key can answer."""
JSON_BODY = (
    MALFORMED_JSON,
    TOO_SLOW,
    TooLargeError,
    UNSUPPORTED_MEDIA_TYPE,
    INVALID_REQUEST,
    StorageFullError,
)
"""What any operation with a JSON body can answer."""
NO_CONTENT_ENCODING = Problem(
    title="Unsupported Media Type",
    status=415,
    cause="UNSUPPORTED_MEDIA_TYPE",
    detail="Send the body as it is: no Content-Encoding is taken.",
)
MODEL_IN_BODY = (TOO_SLOW, TooLargeError, NO_CONTENT_ENCODING, INVALID_REQUEST, StorageFullError)
"""What any operation with a model as its body can answer."""


def status_of(error: type[FedCSError]) -> HTTPStatus:
    """What an error means in HTTP."""
    return next(status for kind, status in STATUS_OF.items() if issubclass(error, kind))


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

    Each target is an operation such as ``GET /tasks/{task_id}``, with what to send there: parameters by
    name, and as ``body.name`` what goes into the body; values are OpenAPI runtime expressions.
    """
    return {status: {"links": {_link_name(operation): _link(operation, to) for operation, to in targets}}}


def together(*documented: Responses) -> Responses:
    """The documentation of responses, in one; of the same status, what each says."""
    responses: Responses = {}
    for one in documented:
        for status, said in one.items():
            responses[status] = responses.get(status, {}) | said
    return responses


def install_openapi(app: FastAPI, root: str) -> None:
    """Add the schema that ``problems`` refers to, where ``links`` lead, and how to send a key."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        document = derive()
        components = document.setdefault("components", {})
        components["securitySchemes"] = _security_schemes(root)
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = components.setdefault("schemas", {})
        schemas |= schema.pop("$defs")
        schemas["Problem"] = schema
        _resolve_links(document, root)
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


def _link(operation: str, to: Mapping[str, str]) -> dict[str, Any]:
    body = {name.removeprefix("body."): value for name, value in to.items() if name.startswith("body.")}
    parameters = {name: value for name, value in to.items() if not name.startswith("body.")}
    given = {"parameters": parameters, "requestBody": body}
    return {"operationId": operation} | {name: value for name, value in given.items() if value}


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


def _as_problem(cause: Problem | type[FedCSError]) -> Problem:
    if isinstance(cause, Problem):
        return cause
    status = status_of(cause)
    return Problem(title=status.phrase, status=status, cause=cause.cause, detail=cause.example)
