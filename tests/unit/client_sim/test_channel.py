"""Whose turn it is, and the pace of an upload."""

import asyncio
import math
from collections.abc import Callable

import pytest

from client_sim.wall_round import Channel, PacedUpload
from tests.virtual_time import run_in_virtual_time

CONTENT = bytes(range(256)) * 40


def nothing() -> None:
    pass


def steady(duration_s: float) -> Callable[[float, float], float]:
    """The pace of an uplink that does not change."""
    return lambda _, share: share * duration_s


async def has_come(waiting: "asyncio.Task[None]") -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting.done()


async def turns_of(channel: Channel, *client_ids: str) -> list[tuple[bool, bool]]:
    """Of each, whether it is next and whether it has the channel."""
    found = []
    for client_id in client_ids:
        waits = [asyncio.create_task(wait(client_id)) for wait in (channel.wait_next, channel.wait_free)]
        is_next, is_free = [await has_come(waiting_) for waiting_ in waits]
        found.append((is_next, is_free))
        for waiting_ in waits:
            waiting_.cancel()
    return found


def test_devices_have_their_turns_in_order() -> None:
    async def play() -> None:
        channel = Channel(["a", "b", "c"])
        assert await turns_of(channel, "a", "b", "c") == [(True, True), (True, False), (False, False)]
        channel.leave("a")
        assert await turns_of(channel, "b", "c") == [(True, True), (True, False)]
        channel.leave("a")  # as when it has sent all, and then its part is over
        assert await turns_of(channel, "b", "c") == [(True, True), (True, False)]
        channel.leave("b")
        assert await turns_of(channel, "c") == [(True, True)]
        channel.leave("c")

    asyncio.run(play())


def test_who_leaves_before_its_turn_is_passed_over() -> None:
    async def play() -> None:
        channel = Channel(["a", "b", "c", "d"])
        channel.leave("b")
        assert await turns_of(channel, "a", "c", "d") == [(True, True), (True, False), (False, False)]
        channel.leave("c")
        assert await turns_of(channel, "a", "d") == [(True, True), (True, False)]
        channel.leave("a")
        assert await turns_of(channel, "d") == [(True, True)]

    asyncio.run(play())


def test_a_device_waits_until_its_turn_comes() -> None:
    async def play() -> None:
        channel = Channel(["a", "b"])
        waiting = asyncio.create_task(channel.wait_free("b"))
        assert not await has_come(waiting)
        channel.leave("a")
        assert await has_come(waiting)

    asyncio.run(play())


def test_who_comes_back_before_its_turn_keeps_it() -> None:
    async def play() -> None:
        channel = Channel(["a", "b", "c"])
        channel.leave("b")
        channel.rejoin("b")
        channel.leave("a")
        assert await turns_of(channel, "b", "c") == [(True, True), (True, False)]

    asyncio.run(play())


def test_who_comes_back_after_its_turn_is_the_last() -> None:
    async def play() -> None:
        channel = Channel(["a", "b", "c"])
        channel.leave("a")
        channel.rejoin("a")
        assert await turns_of(channel, "b", "c", "a") == [(True, True), (True, False), (False, False)]
        channel.leave("b")
        channel.leave("c")
        assert await turns_of(channel, "a") == [(True, True)]
        channel.leave("a")
        channel.rejoin("a")
        assert await turns_of(channel, "a") == [(True, True)]

    asyncio.run(play())


def test_an_upload_keeps_the_pace_of_its_uplink() -> None:
    """Half of it in the first fifth of the time, then an outage, then the rest."""

    def sent_after_s(_: float, share: float) -> float:
        return share * 0.4 if share <= 0.5 else 0.6 + share * 0.4

    async def play() -> tuple[list[tuple[float, int]], PacedUpload]:
        clock, pace, received = (
            asyncio.get_running_loop().time,
            PacedUpload(sent_after_s, math.inf, nothing),
            0,
        )
        began_s, seen = clock(), []
        async for chunk in pace.chunks(CONTENT):
            received += len(chunk)
            seen.append((clock() - began_s, received))
        return seen, pace

    seen, pace = run_in_virtual_time(play())
    assert pace.expected_s == 1
    assert pace.measured_s == pytest.approx(1)
    before, after = ([size for at_s, size in seen if condition(at_s)] for condition in (_is_early, _is_late))
    assert max(before) / len(CONTENT) == pytest.approx(0.5, abs=0.02)
    assert len(before) + len(after) == len(seen)


def _is_early(at_s: float) -> bool:
    return at_s < 0.21


def _is_late(at_s: float) -> bool:
    return at_s > 0.79


async def send(pace: PacedUpload, content: bytes = CONTENT, *, slow_s: float = 0.0) -> list[bytes]:
    """Take all chunks; the network may take a while for each."""
    chunks = []
    async for chunk in pace.chunks(content):
        chunks.append(chunk)
        await asyncio.sleep(slow_s)
    return chunks


@pytest.mark.parametrize("duration_s", [0.02, 0.3, 60.0])
def test_an_upload_takes_its_time_and_no_less(duration_s: float) -> None:
    sent = []
    pace = PacedUpload(steady(duration_s), math.inf, lambda: sent.append(True))
    content = CONTENT * 50
    chunks = run_in_virtual_time(send(pace, content))
    assert b"".join(chunks) == content
    assert len(chunks) == round(duration_s * 50) + 1
    assert min(map(len, chunks)) > 0
    assert pace.measured_s == pytest.approx(duration_s)
    assert sent == [True]


@pytest.mark.parametrize(("slow_s", "measured_s"), [(0.008, 0.5), (0.019, 0.5), (0.04, 1.0)])
def test_chunks_that_are_late_do_not_delay_the_others(slow_s: float, measured_s: float) -> None:
    """The 26 chunks are due every 0.02 s; only a network that takes longer than that makes them late."""
    pace = PacedUpload(steady(0.5), math.inf, nothing)
    run_in_virtual_time(send(pace, slow_s=slow_s))
    assert pace.measured_s == pytest.approx(measured_s + slow_s)


def test_what_is_left_when_patience_ends_goes_at_once() -> None:
    async def play() -> PacedUpload:
        pace = PacedUpload(steady(1000.0), asyncio.get_running_loop().time() + 0.1, nothing)
        assert b"".join(await send(pace)) == CONTENT
        return pace

    assert run_in_virtual_time(play()).measured_s is None


def test_an_upload_that_is_refused_before_its_end_is_not_measured() -> None:
    sent: list[bool] = []
    pace = PacedUpload(steady(1000.0), math.inf, lambda: sent.append(True))

    async def play() -> None:
        chunks = pace.chunks(CONTENT)
        await anext(aiter(chunks))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(chunks)), 0.05)

    run_in_virtual_time(play())
    assert pace.measured_s is None
    assert not sent


def test_sent_anew_it_is_measured_anew() -> None:
    pace = PacedUpload(steady(0.05), math.inf, nothing)
    run_in_virtual_time(send(pace, slow_s=0.2))
    assert pace.measured_s == pytest.approx(0.8)
    assert b"".join(run_in_virtual_time(send(pace))) == CONTENT
    assert pace.measured_s == pytest.approx(0.05)


@pytest.mark.parametrize("content", [b"", b"a", b"ab", b"abc"])
def test_little_content_is_sent_whole(content: bytes) -> None:
    assert (
        b"".join(run_in_virtual_time(send(PacedUpload(steady(0.1), math.inf, nothing), content))) == content
    )
