"""Doing a thing once when several threads want it at the same time."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Whoever asks for what another thread is at gets that one's result, or its error."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._flights: dict[str, Future[_T]] = {}

    def do(self, name: str, work: Callable[[], _T]) -> _T:
        """Do the work of this name, or wait for who is at it."""
        with self._lock:
            flight = self._flights.get(name)
            own = self._flights[name] = Future[_T]() if flight is None else flight
        if flight is not None:
            return flight.result()
        try:
            own.set_result(work())
        except BaseException as error:
            own.set_exception(error)
        finally:
            with self._lock:
                del self._flights[name]
        return own.result()
