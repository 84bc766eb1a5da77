"""Requests, retries and errors of a call, shared by the synchronous and the asynchronous client."""

import os
import random
import time
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Generic, TypeVar

import httpx
from pydantic import ValidationError

from fedcs_client.endpoints import Call
from services.contract.common import Problem
from services.errors import FedCSError, SettingsError

Answer = TypeVar("Answer")

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 3.0
_CONNECT_S = 10.0
_SILENCE_S = 60.0
"""Read time-out of an attempt; the wait that a long poll asks for is added."""

_TRY_AGAIN = {429, 502, 503, 504, 507}


class ApiError(FedCSError):
    """The service refused a request; ``problem`` says why."""

    cause: ClassVar[str] = "REFUSED"

    def __init__(self, call: Call[Any], problem: Problem) -> None:
        super().__init__(f"{call.method} {call.path}: {_one_line(problem)}")
        self.problem = problem
        self.status = problem.status


class UnreachableError(FedCSError):
    """The service was unreachable or unavailable for longer than ``retry_timeout_s``."""

    cause: ClassVar[str] = "UNREACHABLE"


class BrokenAnswerError(Exception):
    """The response is invalid or reports a temporary error; the next attempt may succeed."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


try:
    from aiohttp import ClientError
except ModuleNotFoundError:  # the extra ``simulator`` is not installed
    _AIOHTTP_FAILURES: tuple[type[Exception], ...] = ()
else:
    _AIOHTTP_FAILURES = (ClientError,)

FAILURES: tuple[type[Exception], ...] = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.RemoteProtocolError,
    *_AIOHTTP_FAILURES,
    BrokenAnswerError,
)
"""Failures after which the call is retried."""


class Service:
    """The address of the service, the key and the retry time-out."""

    def __init__(self, url: str, key: str, retry_timeout_s: float) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise SettingsError(f"{url!r} is not the URL of a service, such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.host = parsed.netloc.decode()
        self.key = key
        self.retry_timeout_s = retry_timeout_s

    def authorization(self, key: str | None) -> str:
        """The value of the header ``Authorization``, with the given key or the default key."""
        key = self.key if key is None else key
        if not (key.isascii() and key.isprintable()):
            raise SettingsError("The API key has characters that are not allowed in keys.")
        return f"Bearer {key}"


class Attempts(Generic[Answer]):
    """One call: its requests, the pauses between them, and its result."""

    def __init__(self, service: Service, call: Call[Answer], key: str | None) -> None:
        self._service = service
        self._call = call
        self._content = b""
        self._headers = {"Host": service.host, "Authorization": service.authorization(key), **call.headers}
        if call.json is not None:
            self._content = call.json.model_dump_json().encode()
            self._headers["Content-Type"] = "application/json"
        if call.body is not None:
            self._content = call.body.content
            self._headers["Content-Type"] = "application/octet-stream"
        if call.method != "GET":
            self._headers["Content-Length"] = str(len(self._content))
        if call.is_once:
            self._headers["Idempotency-Key"] = uuid.uuid4().hex
        self._timeout = httpx.Timeout(
            _SILENCE_S, connect=_CONNECT_S, pool=_CONNECT_S, read=_SILENCE_S + call.wait_s
        )
        self._next_pause_s = _FIRST_PAUSE_S
        self._until_s: float | None = None

    def request(self) -> httpx.Request:
        """The request of the next attempt."""
        body = self._call.body
        chunks = body.chunks(body.content) if body and body.chunks else None
        return httpx.Request(
            self._call.method,
            self._service.url + self._call.path,
            params=self._call.params or None,
            headers=self._headers,
            content=chunks,
            # A stream, because aiohttp warns about large bodies that are given as bytes.
            stream=None if chunks else httpx.ByteStream(self._content),
            extensions={"timeout": self._timeout.as_dict()},
        )

    def answer(self, response: httpx.Response) -> Answer:
        """The parsed answer; raises if the response is an error or invalid."""
        if not response.is_success and response.status_code != HTTPStatus.NOT_MODIFIED:
            raise self.refusal(response)
        try:
            return self._call.read_response(response)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise BrokenAnswerError(
                f"{self._call.method} {self._call.path}: invalid answer: {reason}"
            ) from error

    def refusal(self, response: httpx.Response) -> ApiError | BrokenAnswerError:
        """The error that a response reports."""
        problem = _problem(response.status_code, response.content)
        if response.status_code in _TRY_AGAIN:
            return BrokenAnswerError(_one_line(problem), _retry_after_s(response.headers))
        return ApiError(self._call, problem)

    def pause_after(self, failure: Exception) -> float:
        """The pause before the next attempt; raises once the retry time-out is over."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._service.retry_timeout_s
        left_s = self._until_s - now_s
        told_s = failure.retry_after_s if isinstance(failure, BrokenAnswerError) else 0.0
        if left_s <= 0 or told_s > left_s:
            raise UnreachableError(f"{self._service.url} cannot be used: {_reason(failure)}") from failure
        pause_s = min(self._next_pause_s, left_s)
        self._next_pause_s = min(2 * self._next_pause_s, _MAX_PAUSE_S)
        # Random, so that waiting clients do not return at the same time.
        return told_s + pause_s * random.uniform(0.5, 1.0)  # noqa: S311

    def reset_retries(self) -> None:
        """Reset the pauses and the retry time-out."""
        self._next_pause_s = _FIRST_PAUSE_S
        self._until_s = None


def _reason(failure: Exception) -> str:
    """Why the attempt failed, in a few words."""
    refused = getattr(failure.__cause__, "os_error", None)  # of aiohttp
    if isinstance(refused, OSError):
        return os.strerror(refused.errno) if refused.errno else str(refused)
    if isinstance(failure, httpx.ReadTimeout):
        return "no answer in time"
    return " ".join(str(failure).split()) or f"no answer ({type(failure).__name__})"


def _problem(status: int, content: bytes) -> Problem:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:
        title = httpx.codes.get_reason_phrase(status) or "Unknown status"
        return Problem(
            title=title, status=status, detail="The response has no problem details.", cause="UNKNOWN"
        )


def _one_line(problem: Problem) -> str:
    what = (
        "; ".join(f"{invalid.param}: {invalid.reason}" for invalid in problem.invalid_params)
        or problem.detail
    )
    return " ".join(f"{problem.status} {problem.title}: {what}".split())


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """The header ``Retry-After`` in seconds; a date, as some proxies send, counts as 0."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0
