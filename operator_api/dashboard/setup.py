"""The parts of the dashboard in one API process: sessions, templates, and a cache of health checks."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from threading import Lock
from typing import cast

from fastapi import FastAPI, Request, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from operator_api.dashboard.login import Sessions
from operator_api.dashboard.rendering import Templates, render
from operator_api.request_limits import RateLimit, failed_login_limit
from operator_api.routes.health import is_ready
from operator_api.service import Service
from services.storage.database import describe_failure

FRESH = timedelta(hours=1)
"""The maximum age of a report, unless a task overrides it."""
_DAY = timedelta(days=1)
_MAX_AGE_S = 2.0
_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class HealthSummary:
    """The state of the service."""

    checks: Mapping[str, str]
    """The checks of ``/readyz``: ``ok`` or the error."""
    clients: int | None
    fresh_clients: int | None
    failed_jobs: int | None
    """In the last day."""


_UNKNOWN = HealthSummary({}, None, None, None)


class HealthCache:
    """Runs the health checks at most every two seconds, in its own thread: a broker that is down blocks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._executor = ThreadPoolExecutor(1, "health_summary")
        self._pending: Future[HealthSummary] | None = None
        self._refreshed_at = -_MAX_AGE_S
        self._latest = _UNKNOWN

    def now(self) -> HealthSummary:
        """The current state; the latest known state while the checks take long."""
        with self._lock:
            if time.monotonic() < self._refreshed_at + _MAX_AGE_S:
                return self._latest
            if self._pending is None:
                self._pending = self._executor.submit(self._refresh)
            pending = self._pending
        try:
            return pending.result(_TIMEOUT_S)
        except FutureTimeoutError:
            return self._latest

    def _refresh(self) -> HealthSummary:
        try:
            self._latest = self._check()
            self._refreshed_at = time.monotonic()
        finally:
            with self._lock:
                self._pending = None
        return self._latest

    def _check(self) -> HealthSummary:
        try:
            checks: Mapping[str, str] = is_ready(self._service).checks
        except HTTPException as error:
            name, _, wrong = error.detail.partition(": ")
            checks = {name: wrong}
        try:
            with self._service.database.reading() as store:
                now = self._service.database.now()
                clients, fresh_clients = store.overview.clients(now - FRESH)
                failed_jobs = store.overview.failed_jobs(now - _DAY)
        except SQLAlchemyError as error:
            return HealthSummary({**checks, "database": describe_failure(error)}, None, None, None)
        return HealthSummary(checks, clients, fresh_clients, failed_jobs)


@dataclass(frozen=True)
class Dashboard:
    """The parts of the dashboard; routes find them in ``request.app.state.dashboard``."""

    root: str
    failures: RateLimit
    """Failed logins; those of token requests are counted apart, so that devices cannot lock out operators."""
    sessions: Sessions
    templates: Templates
    health_summary: HealthCache


def _show_errors_to_browsers(app: FastAPI) -> None:
    """Answer a person who asks for a page that there is not, or needs a key, with a page."""
    answer_problem = app.exception_handlers[HTTPException]

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            status = HTTPStatus(error.status_code)
            page = render(request, "error.html", status=status, title=status.phrase, text=error.detail)
            page.headers.update(error.headers or {})
            return page
        return cast(Response, answer_problem(request, error))

    app.add_exception_handler(HTTPException, answer)


def install_dashboard(app: FastAPI, service: Service) -> None:
    """Set ``app.state.dashboard``, mount the static files, and show errors to people as pages."""
    root = service.settings.api_root
    templates = Templates(root)
    app.state.dashboard = Dashboard(
        root=root,
        failures=failed_login_limit(),
        sessions=Sessions(service.settings.operator_key, root),
        templates=templates,
        health_summary=HealthCache(service),
    )
    _show_errors_to_browsers(app)
    app.mount(f"{root}/dashboard/static", templates.static_files)
    app.mount(f"{root}/dashboard/bokeh", templates.bokeh_files)
