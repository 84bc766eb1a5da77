"""A short chaos test leaves everything in order, and the checker finds falsified evidence."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.chaos.checker import Evidence, find_faults
from tests.faults.chaos.history import SentUpdate
from tests.faults.chaos.runner import chaos_run
from tests.faults.chaos.timing import SHORT

SEED = 7
DURATION_S = 15.0


def test_nothing_is_lost_counted_twice_or_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def live_through() -> None:
        run = chaos_run(tmp_path / "deployment", seed=SEED, duration_s=DURATION_S, timing=SHORT, say=print)
        async with run as result:
            print(result.summary)
            assert result.run.faults == [], capsys.readouterr().out
            assert result.run.injected
            assert result.evidence.history.updates
            assert result.evidence.history.reports
            for falsified, complaint in falsifications(result.evidence):
                found = find_faults(falsified)
                assert any(complaint in item for item in found), f"{complaint!r} is not in {found}"

    asyncio.run(live_through())


def falsifications(evidence: Evidence) -> Iterator[tuple[Evidence, str]]:
    """The same evidence with one thing wrong, and what the checker must say to it."""
    told, history = evidence.told, evidence.history
    number = told[9].number
    yield replace(evidence, told=[*told[:9], *told[10:]]), f"event {number}, {told[9].kind}, was never told"
    yield replace(evidence, told=[*told[:10], *told[9:]]), f"events went from {number} to {number}"
    yield replace(evidence, told=[*told[:9], told[9].model_copy(update={"kind": "x"})]), "is not kept"
    yield replace(evidence, overdue_s=-1.0), "longer than it should"

    report = replace(history, reports=history.reports | {("heart", 1.0): 0.0})
    yield replace(evidence, history=report), "the report of heart with 1 bit/s was acknowledged and is lost"
    update = SentUpdate("round-0", "phone-0", "0" * 64, 1)
    acknowledged = replace(history, updates=history.updates | {update})
    yield (
        replace(evidence, history=acknowledged),
        "update of phone-0 for round-0 was acknowledged and is lost",
    )
    yield replace(evidence, history=replace(history, sent=set())), "that nobody sent"

    changed = history.directory.with_name("changed")
    changed.mkdir()
    for path in history.directory.iterdir():
        content = bytearray(path.read_bytes())
        content[-4] ^= 0x80  # a little more, or less, in the last number
        (changed / path.name).write_bytes(content)
    yield replace(evidence, history=replace(history, directory=changed)), "is not that of the"
