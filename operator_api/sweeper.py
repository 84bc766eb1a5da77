"""The sweep of model files that nothing refers to, in a thread of its own: a large store takes minutes."""

import time
from collections.abc import Collection
from threading import Thread

import structlog

from services.errors import ModelStoreAwayError
from services.storage.database import Database
from services.storage.model_store import ModelStore

_SWEEP_S = 60.0
_SWEEP_OLDER_THAN_S = 300.0
"""Ample time for a file that was kept to be referred to: no transaction waits longer than a minute."""
_PATIENCE_S = 5.0

_log = structlog.get_logger(__name__)


class _StoppedError(Exception):
    """The process ends; the next keeper will sweep."""


class Sweeper:
    """Sweeps when it is told to, if it is not at it."""

    def __init__(self, database: Database, models: ModelStore) -> None:
        self._database = database
        self._models = models
        self._next_sweep = 0.0
        self._stopping = False
        self._thread: Thread | None = None

    def sweep_if_due(self) -> None:
        """Begin, if the last time is a minute ago."""
        if time.monotonic() < self._next_sweep or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_sweep = time.monotonic() + _SWEEP_S
        self._thread = Thread(target=self._run, name="sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End before the next files are deleted; a store that does not answer is not waited for."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            if swept := self._models.sweep(self._referenced, _SWEEP_OLDER_THAN_S):
                _log.info("files deleted that nothing refers to", files=swept)
        except _StoppedError:
            pass
        except ModelStoreAwayError as error:
            _log.warning("files could not be swept", error=str(error))
        except Exception:
            _log.exception("the sweep failed")

    def _referenced(self, digests: Collection[str]) -> set[str]:
        if self._stopping:
            raise _StoppedError
        with self._database.reading() as store:
            return store.models.referenced(digests)
