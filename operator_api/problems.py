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

from services.contract.common import PROBLEM_MEDIA_TYPE, InvalidParam, Problem
from services.errors import (
    ConflictError,
    FedCSError,
    ModelFileMissingError,
    ModelStoreUnavailableError,
    NotAllowedError,
    NotFoundError,
    RetryLaterError,
    ServiceBusyError,
    StorageFullError,
    TooLargeError,
    TooManyRequestsError,
    UnacceptableError,
)
from services.storage.database import describe_failure, is_database_unavailable

_MAX_INVALID_PARAMS = 20
_TRY_AGAIN = {"Retry-After": "1"}
_MAX_POINTER_LENGTH = 300
"""A longer pointer contains names that the caller invented."""

WITHOUT_HEAD = frozenset({"/events", "/assignments"})
"""Paths of which HEAD is not answered: the answer to GET may not end, or come late."""

_log = structlog.get_logger(__name__)

_STATUS_OF: dict[type[FedCSError], HTTPStatus] = {
    NotFoundError: HTTPStatus.NOT_FOUND,
    NotAllowedError: HTTPStatus.FORBIDDEN,
    ConflictError: HTTPStatus.CONFLICT,
    UnacceptableError: HTTPStatus.UNPROCESSABLE_ENTITY,
    ModelStoreUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooManyRequestsError: HTTPStatus.TOO_MANY_REQUESTS,
    ModelFileMissingError: HTTPStatus.SERVICE_UNAVAILABLE,
    ServiceBusyError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageFullError: HTTPStatus.INSUFFICIENT_STORAGE,
}
"""What each kind of error means in HTTP."""

_CAUSE_OF: Mapping[HTTPStatus, str] = {
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "BODY_TOO_LARGE",
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "RANGE_NOT_SATISFIABLE",
    HTTPStatus.SERVICE_UNAVAILABLE: "NOT_READY",
}
"""Other causes are the names of their status."""


def status_of(error: type[FedCSError]) -> HTTPStatus:
    """What an error means in HTTP."""
    return next(status for kind, status in _STATUS_OF.items() if issubclass(error, kind))


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


def invalid_field(path: tuple[str | int, ...], reason: str, value: object) -> RequestValidationError:
    """The error for a value in the body that only the database can tell to be wrong."""
    return RequestValidationError(
        [{"type": "unknown_value", "loc": ("body", *path), "msg": reason, "input": value}]
    )


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, FedCSError)
    headers = {}
    if isinstance(error, RetryLaterError):
        headers["Retry-After"] = str(max(math.ceil(error.retry_after_s), 1))
    status = status_of(type(error))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, ServiceBusyError):
        _log.error("a dependency is unavailable", cause=error.cause, error=str(error))
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
    """The transaction may or may not be committed: the caller retries with the same idempotency key."""
    assert isinstance(error, SQLAlchemyError)
    if not is_database_unavailable(error):
        raise error
    _log.warning("the database is unavailable", error=describe_failure(error))
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
    methods = {method for variables, route in found if variables == fewest for method in route.methods}
    without_head = path in WITHOUT_HEAD or "GET" not in methods
    return sorted(methods if without_head else methods | {"HEAD"})


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # An optional value that is wrong is wrong twice for pydantic: "Input should be None" helps nobody.
    errors = [item for item in error.errors() if item["type"] != "none_required"] or error.errors()
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
    shown = [InvalidParam(param=_param(item), reason=item["msg"]) for item in errors[:_MAX_INVALID_PARAMS]]
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return problem_response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "INVALID_REQUEST",
        f"{shown[0].param}: {shown[0].reason}{more}.",
        invalid_params=shown,
    )


def _param(error: Mapping[str, Any]) -> str:
    """A JSON pointer into the body; validators of whole objects name the field in ``within``."""
    where, *path = error["loc"]
    if where != "body":
        return str(path[0])
    path += error.get("ctx", {}).get("within", ())
    pointer = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
    return pointer if len(pointer) <= _MAX_POINTER_LENGTH else pointer[: _MAX_POINTER_LENGTH - 1] + "…"


def bug_response() -> Response:
    """The response to an unhandled exception, without details."""
    return problem_response(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "INTERNAL_ERROR",
        "The service failed to answer; the log says why.",
    )
