"""How slowly a body may come, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from operator_api.request_limits import MAX_PAUSE_S, MIN_BYTES_PER_S, with_body_limit
from tests.virtual_time import run_in_virtual_time

Piece = tuple[float, int]
"""After how long it comes, and how many bytes it has."""


async def _read(pieces: Iterable[Piece]) -> tuple[int, float]:
    """Read a body that comes in these pieces; its size, and when it was there."""
    coming = iter(pieces)

    async def receive() -> Message:
        after_s, size_bytes = next(coming, (0.0, 0))
        await asyncio.sleep(after_s)
        return {"type": "http.request", "body": bytes(size_bytes), "more_body": size_bytes > 0}

    request = with_body_limit(Request({"type": "http", "headers": []}, receive), 10**9)
    size_bytes = sum([len(chunk) async for chunk in _chunks(request)])
    return size_bytes, asyncio.get_running_loop().time()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        yield chunk


@pytest.mark.parametrize(
    ("pieces", "taken_s"),
    [
        pytest.param([(1.0, MIN_BYTES_PER_S)] * 3600, 3600, id="an hour, at the least pace"),
        pytest.param([(MAX_PAUSE_S - 1, 1000)], MAX_PAUSE_S - 1, id="a long pause before it"),
        pytest.param(
            [(MAX_PAUSE_S - 1, 30 * MIN_BYTES_PER_S)] * 3, 3 * (MAX_PAUSE_S - 1), id="pauses made up for"
        ),
    ],
)
def test_a_body_may_take_its_time_if_it_comes_steadily(pieces: list[Piece], taken_s: float) -> None:
    size_bytes, ended_s = run_in_virtual_time(_read(pieces))
    assert size_bytes == sum(size for _, size in pieces)
    assert ended_s == pytest.approx(taken_s)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(MAX_PAUSE_S + 1, 10**6)], id="one pause"),
        pytest.param([(1.0, MIN_BYTES_PER_S // 2)] * 100, id="half the least pace"),
        pytest.param([(0.0, 10**6), (MAX_PAUSE_S + 1, 1)], id="what came quickly is not saved up"),
        pytest.param([(1.0, 1)] * 1000, id="a byte at a time"),
    ],
)
def test_a_body_that_comes_more_slowly_is_refused(pieces: list[Piece]) -> None:
    with pytest.raises(HTTPException) as refused:
        run_in_virtual_time(_read(pieces))
    assert refused.value.status_code == 408
