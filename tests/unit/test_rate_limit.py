"""How often a key may ask, by a clock that the test sets."""

import time

import pytest
from limits import parse

from operator_api.request_limits import RateLimit
from services.errors import TooManyRequestsError


class Clock:
    """What time it is."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_the_span_begins_with_the_first_request_and_then_anew(clock: Clock) -> None:
    limit = RateLimit(parse("2/10 second"))
    limit.count("a")
    clock.now += 9
    limit.count("a")
    with pytest.raises(TooManyRequestsError) as refused:
        limit.count("a")
    assert refused.value.retry_after_s == pytest.approx(1)
    clock.now += 1
    limit.count("a")
    limit.count("a")
    with pytest.raises(TooManyRequestsError, match="2 per 10 second"):
        limit.count("a")


def test_each_key_is_counted_by_itself(clock: Clock) -> None:
    limit = RateLimit(parse("1/10 second"))
    limit.count("a")
    limit.count("b")
    clock.now += 1
    for key_id in "ab":
        with pytest.raises(TooManyRequestsError):
            limit.count(key_id)


def test_keys_that_no_longer_ask_are_forgotten(clock: Clock) -> None:
    limit = RateLimit(parse("5/10 second"))
    for number in range(100):
        limit.count(f"gone {number}")
    assert len(limit) == 100
    clock.now += 10
    limit.count("still here")
    assert len(limit) == 1


def test_a_sweep_leaves_those_whose_span_is_not_over(clock: Clock) -> None:
    limit = RateLimit(parse("1/10 second"))
    limit.count("early")
    clock.now += 6
    limit.count("late")
    clock.now += 5
    limit.count("early")
    with pytest.raises(TooManyRequestsError):
        limit.count("late")
