"""What is too slow to ask for with every page: whether all is well, and how many clients there are.

It is looked up at most every two seconds, in a thread of its own: a broker that is away keeps one waiting.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock

from fastapi import HTTPException
from sqlalchemy.exc import SQLAlchemyError

from operator_api.routes.health import is_ready
from operator_api.service import Service
from services.storage.database import describe_failure

FRESH = timedelta(hours=1)
"""A report that is not older counts, unless a task says otherwise."""
_GOOD_FOR_S = 2.0
_PATIENCE_S = 0.5


@dataclass(frozen=True)
class Vitals:
    """How the service is."""

    checks: Mapping[str, str]
    """What ``/readyz`` checks, with ``ok`` or what is wrong."""
    clients: int | None
    fresh_clients: int | None


_UNKNOWN = Vitals({}, None, None)


class VitalsWatch:
    """Knows how the service was a moment ago."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._looker = ThreadPoolExecutor(1, "vitals")
        self._looking: Future[Vitals] | None = None
        self._looked_at = -_GOOD_FOR_S
        self._known = _UNKNOWN

    def now(self) -> Vitals:
        """How it is; while that takes long to find out, how it was when last looked."""
        with self._lock:
            if time.monotonic() < self._looked_at + _GOOD_FOR_S:
                return self._known
            if self._looking is None:
                self._looking = self._looker.submit(self._look)
            looking = self._looking
        try:
            return looking.result(_PATIENCE_S)
        except NotYet:
            return self._known

    def _look(self) -> Vitals:
        try:
            self._known = self._find_out()
            self._looked_at = time.monotonic()
        finally:
            with self._lock:
                self._looking = None
        return self._known

    def _find_out(self) -> Vitals:
        try:
            checks: Mapping[str, str] = is_ready(self._service).checks
        except HTTPException as error:
            name, _, wrong = error.detail.partition(": ")
            checks = {name: wrong}
        try:
            with self._service.database.reading() as store:
                clients, fresh_clients = store.overview.clients(self._service.database.now() - FRESH)
        except SQLAlchemyError as error:
            return Vitals({**checks, "database": describe_failure(error)}, None, None)
        return Vitals(checks, clients, fresh_clients)
