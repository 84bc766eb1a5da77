from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Semaphore

import pytest

from services.storage import s3_model_store
from services.storage.s3_model_store import SingleFlight


class Work:
    """Is done when it is let go; then it fails, if it is to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = Event()
        self.may_end = Event()
        self._error = error

    def do(self) -> str:
        self.begun.set()
        assert self.may_end.wait(10)
        if self._error:
            raise self._error
        return "done"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Semaphore:
    """Can be acquired once for each who asks for a result."""
    asked = Semaphore(0)

    class Noticed(Future[str]):
        def result(self, timeout: float | None = None) -> str:
            asked.release()
            return super().result(timeout)

    monkeypatch.setattr(s3_model_store, "Future", Noticed)
    return asked


def never() -> str:
    raise AssertionError("another is at it")


def test_those_who_come_meanwhile_get_the_result_of_the_first(waiting: Semaphore) -> None:
    flights, work = SingleFlight[str](), Work()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(flights.do, "a", work.do)
        work.begun.wait()
        assert flights.do("b", lambda: "another name does not wait") == "another name does not wait"
        waiting.acquire()
        others = [pool.submit(flights.do, "a", never) for _ in range(3)]
        for _ in others:
            assert waiting.acquire(timeout=10)
        work.may_end.set()
        assert {item.result() for item in (first, *others)} == {"done"}
    assert flights.do("a", lambda: "again") == "again"


def test_an_error_is_for_all_who_wait_and_is_not_kept(waiting: Semaphore) -> None:
    flights, work = SingleFlight[str](), Work(OSError("away"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(flights.do, "a", work.do)
        work.begun.wait()
        second = pool.submit(flights.do, "a", never)
        assert waiting.acquire(timeout=10)
        work.may_end.set()
        for item in (first, second):
            with pytest.raises(OSError, match="away"):
                item.result()
    assert flights.do("a", lambda: "again") == "again"
