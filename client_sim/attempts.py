"""How a call is sent until it is answered: what the synchronous and the asynchronous client share."""

import itertools
import os
import random
import time
import uuid
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import aiohttp
import httpx
from pydantic import ValidationError

from client_sim.calls import Call
from services.contract.problems import Problem
from services.errors import FedCSError, SettingsError

Answer = TypeVar("Answer")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 3.0
_CONNECT_S = 10.0
_SILENCE_S = 60.0
"""How long the service may be silent before an attempt is given up, beside what a call says it waits."""

_TRY_AGAIN = {429, 502, 503, 504, 507}


class ApiError(FedCSError):
    """The service refuses a request; ``problem`` says why."""

    cause: ClassVar[str] = "REFUSED"

    def __init__(self, call: Call[Any], problem: Problem) -> None:
        super().__init__(f"{call.method} {call.path}: {_one_line(problem)}")
        self.problem = problem
        self.status = problem.status


class UnreachableError(FedCSError):
    """The service did not answer, or was not able to, for longer than the caller's patience."""

    cause: ClassVar[str] = "UNREACHABLE"


class BrokenAnswerError(Exception):
    """What came back is no answer; the next attempt may get one."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


FAILURES = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.RemoteProtocolError,
    aiohttp.ClientError,
    BrokenAnswerError,
)
"""What the next attempt may not meet."""


class Service:
    """Where the service is, and with which key and patience it is asked."""

    def __init__(self, url: str, key: str, patience_s: float) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise SettingsError(f"{url!r} is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise SettingsError(f"{url!r} is no URL of a service, such as http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.key = key
        self.patience_s = patience_s
        self.is_secure = parsed.scheme == "https"
        self._host = (b"Host", parsed.netloc)
        self._run = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    def headers(self, key: str | None) -> list[tuple[bytes, bytes]]:
        """The headers that every request has; without a ``key`` of its own it has the caller's."""
        text = self.key if key is None else key
        if not (text.isascii() and text.isprintable()):
            raise SettingsError("The API key has characters that no key has.")
        return [self._host, (b"Authorization", b"Bearer " + text.encode())]

    def new_idempotency_key(self) -> bytes:
        """One that no other call has; numbered, as to draw each would take longer than to send it."""
        return f"{self._run}-{next(self._numbers)}".encode()


class Attempts(Generic[Answer]):
    """One call: its requests, the pauses between them, and its answer."""

    def __init__(self, service: Service, call: Call[Answer], key: str | None) -> None:
        self._service = service
        self._call = call
        self._url = _url(service.url + call.target)
        self._content = b"" if call.json is None else call.json.model_dump_json().encode()
        self._headers = service.headers(key)
        self._headers += [(name.encode(), value.encode()) for name, value in call.headers.items()]
        if call.json is not None:
            self._headers.append((b"Content-Type", b"application/json"))
        if call.body is not None:
            self._content = call.body.content
            self._headers.append((b"Content-Type", b"application/octet-stream"))
        if call.method != "GET":
            self._headers.append((b"Content-Length", str(len(self._content)).encode()))
        if call.is_once:
            self._headers.append((b"Idempotency-Key", service.new_idempotency_key()))
        self._next_pause_s = _FIRST_PAUSE_S
        self._until_s: float | None = None

    def request(self) -> httpx.Request:
        """The request, for another attempt."""
        body = self._call.body
        chunks = body.chunks(body.content) if body and body.chunks else None
        return httpx.Request(
            self._call.method,
            self._url,
            headers=self._headers,
            content=chunks,
            stream=None if chunks else httpx.ByteStream(self._content),
            extensions=_timeouts(self._call.wait_s),
        )

    def answer(self, response: httpx.Response) -> Answer:
        """What the service answered, if it is what was hoped for."""
        if not response.is_success:
            raise self.refusal(response)
        try:
            return self._call.read(response.content)
        except ValueError as error:
            reason = str(error).partition("\n")[0]
            raise BrokenAnswerError(
                f"{self._call.method} {self._call.path} is answered wrongly: {reason}"
            ) from error

    def refusal(self, response: httpx.Response) -> ApiError | BrokenAnswerError:
        """What is wrong, by an answer that tells it."""
        problem = _problem(response.status_code, response.content)
        if response.status_code in _TRY_AGAIN:
            return BrokenAnswerError(_one_line(problem), _retry_after_s(response.headers))
        return ApiError(self._call, problem)

    def pause_after(self, failure: Exception) -> float:
        """How long to wait before the next attempt; patience counts from the first failure."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._service.patience_s
        left_s = self._until_s - now_s
        told_s = failure.retry_after_s if isinstance(failure, BrokenAnswerError) else 0.0
        if left_s <= 0 or told_s > left_s:
            raise UnreachableError(f"{self._service.url} cannot be used: {_reason(failure)}") from failure
        pause_s = min(self._next_pause_s, left_s)
        self._next_pause_s = min(2 * self._next_pause_s, _LONGEST_PAUSE_S)
        # Not all who wait may come back at once.
        return told_s + pause_s * random.uniform(0.5, 1.0)  # noqa: S311

    def forget_failures(self) -> None:
        """Be as patient as at first."""
        self._next_pause_s = _FIRST_PAUSE_S
        self._until_s = None


@lru_cache(maxsize=4096)
def _url(text: str) -> httpx.URL:
    """Parsed once: it takes as long as the rest of a request's making."""
    return httpx.URL(text)


@lru_cache(maxsize=64)
def _timeouts(wait_s: float) -> dict[str, dict[str, float]]:
    return {
        "timeout": {
            "connect": _CONNECT_S,
            "read": _SILENCE_S + wait_s,
            "write": _SILENCE_S,
            "pool": _CONNECT_S,
        }
    }


def _reason(failure: Exception) -> str:
    """Why there is no answer, in a few words."""
    if isinstance(failure.__cause__, aiohttp.ClientConnectorError):
        refused = failure.__cause__.os_error
        return os.strerror(refused.errno) if refused.errno else str(refused)
    if isinstance(failure, httpx.ReadTimeout):
        return "no answer came in time"
    return " ".join(str(failure).split()) or f"no answer ({type(failure).__name__})"


def _problem(status: int, content: bytes) -> Problem:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:
        title = httpx.codes.get_reason_phrase(status) or "Unknown status"
        return Problem(title=title, status=status, detail="The answer does not say why.", cause="UNKNOWN")


def _one_line(problem: Problem) -> str:
    what = "; ".join(f"{one.param}: {one.reason}" for one in problem.invalid_params) or problem.detail
    return " ".join(f"{problem.status} {problem.title}: {what}".split())


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds, as the service says; a proxy may name a date, which is as good as nothing."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0
