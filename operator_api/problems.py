"""Every error leaves the API as a problem (RFC 9457); here each kind gets its status and cause."""

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from operator_api.openapi import status_of
from services.contract.problems import PROBLEM_MEDIA_TYPE, InvalidParam, Problem
from services.errors import FedCSError, SlotNotOpenError, TooManyRequestsError
from services.storage.database import describe_failure, is_away

_MOST_INVALID_PARAMS = 20
_TRY_AGAIN = {"Retry-After": "1"}
_LONGEST_POINTER = 300
"""A longer one has names in it that a stranger made up."""

_log = structlog.get_logger(__name__)

_CAUSE_OF: Mapping[HTTPStatus, str] = {
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "BODY_TOO_LARGE",
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "RANGE_NOT_SATISFIABLE",
    HTTPStatus.SERVICE_UNAVAILABLE: "NOT_READY",
}
"""Other causes are the names of their status."""


def install_problem_handlers(app: FastAPI) -> None:
    """Answer every exception with a problem; bugs are for the outermost layer, ``request_context``."""
    app.add_exception_handler(FedCSError, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(SQLAlchemyError, _database_failed)


def problem_response(
    status: HTTPStatus,
    cause: str,
    detail: str,
    *,
    invalid_params: Sequence[InvalidParam] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem as a response."""
    problem = Problem(
        title=status.phrase,
        status=status,
        detail=detail,
        cause=cause,
        invalid_params=list(invalid_params),
    )
    return Response(problem.model_dump_json(), status, headers=headers, media_type=PROBLEM_MEDIA_TYPE)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedCSError)
    headers = {}
    if isinstance(error, (SlotNotOpenError, TooManyRequestsError)):
        headers["Retry-After"] = str(max(math.ceil(error.retry_after_s), 1))
    status = status_of(type(error))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("the service lacks something", cause=error.cause, error=str(error))
    return problem_response(status, error.cause, str(error), headers=headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    cause = _CAUSE_OF.get(status, status.name)
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request) or ("GET", "HEAD"))  # else it is a file
    return problem_response(status, cause, error.detail, headers=headers)


def _database_failed(request: Request, error: Exception) -> Response:
    """Nothing was committed, or nobody knows whether: the caller may try again with the same key."""
    assert isinstance(error, SQLAlchemyError)
    if not is_away(error):
        raise error
    _log.warning("the database cannot be used", error=describe_failure(error))
    status = HTTPStatus.SERVICE_UNAVAILABLE
    detail = "The database cannot be used just now; try again."
    return problem_response(status, _CAUSE_OF[status], detail, headers=_TRY_AGAIN)


def _allowed_methods(request: Request) -> list[str]:
    """Of all routes on this path (Starlette names those of the first only); the plainest path wins."""
    path = request.scope["path"].removeprefix(request.app.state.service.settings.api_root)
    found = [
        (len(match.groupdict()), route)
        for route in request.app.state.routes
        if (match := route.path_regex.match(path))
    ]
    fewest = min((variables for variables, _ in found), default=0)
    return sorted({method for variables, route in found if variables == fewest for method in route.methods})


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return problem_response(
            HTTPStatus.BAD_REQUEST,
            "MALFORMED_JSON",
            f"The body is not JSON: {first['ctx']['error']}.",
        )
    if first["loc"] == ("body",) and isinstance(error.body, bytes):
        return problem_response(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
            "Send JSON, with the header Content-Type: application/json.",
        )
    shown = [InvalidParam(param=_param(one), reason=one["msg"]) for one in errors[:_MOST_INVALID_PARAMS]]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "INVALID_REQUEST",
        f"{shown[0].param}: {shown[0].reason}{more}.",
        invalid_params=shown,
    )


def _param(error: Mapping[str, Any]) -> str:
    """Where in the body it is; a validator of a whole says with ``within`` which part of it it means."""
    where, *path = error["loc"]
    if where != "body":
        return str(path[0])
    path += error.get("ctx", {}).get("within", ())
    pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
    return pointer if len(pointer) <= _LONGEST_POINTER else pointer[: _LONGEST_POINTER - 1] + "…"


def bug_response() -> Response:
    """What a caller is told of a bug: nothing."""
    return problem_response(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL_ERROR",
        "The service failed to answer; the log says why.",
    )
