"""Whose turn it is, and the pace of an upload."""

import asyncio
import math
import time

import pytest

from client_sim.channel import Channel, Pace

CONTENT = bytes(range(256)) * 40


def nothing() -> None:
    pass


async def has_come(waiting: "asyncio.Task[None]") -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting.done()


async def turns_of(channel: Channel, *client_ids: str) -> list[tuple[bool, bool]]:
    """Of each, whether it is next and whether it has the channel."""
    found = []
    for client_id in client_ids:
        waits = [asyncio.create_task(wait(client_id)) for wait in (channel.is_next, channel.is_free)]
        is_next, is_free = [await has_come(one) for one in waits]
        found.append((is_next, is_free))
        for one in waits:
            one.cancel()
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
        waiting = asyncio.create_task(channel.is_free("b"))
        assert not await has_come(waiting)
        channel.leave("a")
        assert await has_come(waiting)

    asyncio.run(play())


async def send(pace: Pace, content: bytes = CONTENT, *, slow_s: float = 0.0) -> list[bytes]:
    """Take all chunks; the network may take a while for each."""
    chunks = []
    async for chunk in pace.chunks(content):
        chunks.append(chunk)
        await asyncio.sleep(slow_s)
    return chunks


@pytest.mark.parametrize("duration_s", [0.02, 0.3])
def test_an_upload_takes_its_time_and_no_less(duration_s: float) -> None:
    sent = []
    pace = Pace(duration_s, math.inf, lambda: sent.append(True))
    began_s = time.monotonic()
    chunks = asyncio.run(send(pace))
    assert b"".join(chunks) == CONTENT
    assert len(chunks) == round(duration_s * 50) + 1
    assert min(map(len, chunks)) > 0
    assert pace.measured_s is not None
    assert 0.9 * duration_s < pace.measured_s <= time.monotonic() - began_s
    assert sent == [True]


def test_chunks_that_are_late_do_not_delay_the_others() -> None:
    async def play() -> tuple[float, float]:
        pace, slow = Pace(0.5, math.inf, nothing), Pace(0.5, math.inf, nothing)
        await asyncio.gather(send(pace), send(slow, slow_s=0.008))  # 26 chunks: 0.2 s in all
        assert pace.measured_s is not None
        assert slow.measured_s is not None
        return pace.measured_s, slow.measured_s

    prompt_s, slow_s = asyncio.run(play())
    assert slow_s - prompt_s < 0.1


def test_what_is_left_when_patience_ends_goes_at_once() -> None:
    async def play() -> Pace:
        pace = Pace(1000.0, asyncio.get_running_loop().time() + 0.1, nothing)
        assert b"".join(await send(pace)) == CONTENT
        return pace

    assert asyncio.run(play()).measured_s is None


def test_an_upload_that_is_refused_before_its_end_is_not_measured() -> None:
    sent: list[bool] = []
    pace = Pace(1000.0, math.inf, lambda: sent.append(True))

    async def play() -> None:
        chunks = pace.chunks(CONTENT)
        await anext(aiter(chunks))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(chunks)), 0.05)

    asyncio.run(play())
    assert pace.measured_s is None
    assert not sent


def test_sent_anew_it_is_measured_anew() -> None:
    pace = Pace(0.05, math.inf, nothing)
    asyncio.run(send(pace, slow_s=0.2))
    first_s = pace.measured_s
    assert b"".join(asyncio.run(send(pace))) == CONTENT
    assert first_s is not None
    assert pace.measured_s is not None
    assert pace.measured_s < first_s


@pytest.mark.parametrize("content", [b"", b"a", b"ab", b"abc"])
def test_little_content_is_sent_whole(content: bytes) -> None:
    assert b"".join(asyncio.run(send(Pace(0.1, math.inf, nothing), content))) == content
