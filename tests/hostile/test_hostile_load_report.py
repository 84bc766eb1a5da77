"""The report of a hostile load test names every failure."""

from dataclasses import replace

from tests.hostile.attackers import WAITING, Attack, Toll
from tests.hostile.honest_clients import Sample
from tests.hostile.hostile_load_report import HostileLoad, report


def samples(took_s: float, status: int = 200) -> list[Sample]:
    return [Sample(0.0, took_s, status)] * 100


def toll(*statuses: int) -> Toll:
    found = Toll()
    for status in statuses:
        found.note(Attack("update", b"x", frozenset({422}), is_recorded=True), status)
    return found


HELD = HostileLoad(
    database="sqlite",
    seed=1,
    rate_per_s=50,
    wanted=2,
    duration_s=200,
    toll=toll(422, 422, WAITING),
    slow_connections=200,
    slow_closed=7,
    quiet=samples(0.01),
    under_attack=samples(0.05),
    memory_before_mb=100,
    memory_most_mb=164,
    memory_after_mb=120,
)


def test_one_that_holds() -> None:
    assert not HELD.failures
    assert (HELD.uploads, HELD.requests, HELD.toll.recorded) == (3, 0, 2)
    assert "| result | holds |" in report([HELD])


def test_those_that_do_not() -> None:
    for broken, failure in (
        (replace(HELD, toll=toll(422, 503)), "1 answers were 5xx"),
        (replace(HELD, toll=toll(422, 201)), "unexpected: update: 201"),
        (replace(HELD, under_attack=samples(0.05, 503)), "honest clients were refused"),
        (replace(HELD, under_attack=samples(0.05, 0)), "honest clients were refused"),
        (replace(HELD, under_attack=samples(0.051)), "p99 of honest clients rose 5.1 times"),
        (replace(HELD, wanted=4), "only 3 of 4 attacks were sent in time"),
        (replace(HELD, memory_most_mb=165), "memory grew by 65 MB"),
    ):
        assert failure in "; ".join(broken.failures)
        assert failure in report([broken])


def test_a_fuzzed_request_may_get_any_answer_but_an_error_of_ours() -> None:
    fuzzed = Toll()
    for status in (200, 404, 0, WAITING):
        fuzzed.note(Attack("fuzzed path", b"x"), status)
    assert not fuzzed.surprises
    fuzzed.note(Attack("fuzzed path", b"x"), 500)
    assert len(fuzzed.surprises) == 1
