"""Garbage collection of model files without a reference, in its own thread: a large store takes minutes."""

import time
from collections.abc import Collection
from threading import Thread

import structlog

from services.errors import ModelStoreUnavailableError
from services.storage.database import Database
from services.storage.model_store import ModelStore

_SWEEP_S = 60.0
_SWEEP_OLDER_THAN_S = 300.0
"""Ample time for a file that was kept to be referred to: no transaction waits longer than a minute."""
_STOP_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


class _StoppedError(Exception):
    """The process is stopping; the next reconciler collects."""


class BlobGarbageCollector:
    """Deletes unreferenced files, once a minute at most."""

    def __init__(self, database: Database, models: ModelStore) -> None:
        self._database = database
        self._models = models
        self._next_sweep = 0.0
        self._stopping = False
        self._thread: Thread | None = None

    def sweep_if_due(self) -> None:
        """Start a collection if the last one started a minute ago and has ended."""
        if time.monotonic() < self._next_sweep or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_sweep = time.monotonic() + _SWEEP_S
        self._thread = Thread(target=self._run, name="blob_gc", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop before the next files are deleted; wait a limited time for a store that does not answer."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            if swept := self._models.delete_unreferenced(self._referenced, _SWEEP_OLDER_THAN_S):
                _log.info("unreferenced model files deleted", files=swept)
        except _StoppedError:
            pass
        except ModelStoreUnavailableError as error:
            _log.warning("garbage collection failed: the model store is unavailable", error=str(error))
        except Exception:
            _log.exception("garbage collection failed")

    def _referenced(self, digests: Collection[str]) -> set[str]:
        if self._stopping:
            raise _StoppedError
        with self._database.reading() as store:
            return store.models.referenced(digests)
