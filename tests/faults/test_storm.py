"""A short storm of faults leaves everything in order; and the checker would have said so if it had not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.storm.checker import Evidence, find_faults
from tests.faults.storm.ledger import SentUpdate
from tests.faults.storm.storm import weathered
from tests.faults.storm.tempo import HASTY

SEED = 7
DURATION_S = 15.0


def test_nothing_is_lost_counted_twice_or_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def live_through() -> None:
        storm = weathered(tmp_path / "site", seed=SEED, duration_s=DURATION_S, tempo=HASTY, say=print)
        async with storm as aftermath:
            print(aftermath.summary)
            assert aftermath.storm.faults == [], capsys.readouterr().out
            assert aftermath.storm.happened
            assert aftermath.evidence.ledger.updates
            assert aftermath.evidence.ledger.reports
            for falsified, complaint in falsifications(aftermath.evidence):
                found = find_faults(falsified)
                assert any(complaint in one for one in found), f"{complaint!r} is not in {found}"

    asyncio.run(live_through())


def falsifications(evidence: Evidence) -> Iterator[tuple[Evidence, str]]:
    """The same evidence with one thing wrong, and what the checker must say to it."""
    told, ledger = evidence.told, evidence.ledger
    number = told[9].number
    yield replace(evidence, told=[*told[:9], *told[10:]]), f"event {number}, {told[9].kind}, was never told"
    yield replace(evidence, told=[*told[:10], *told[9:]]), f"events went from {number} to {number}"
    yield replace(evidence, told=[*told[:9], told[9].model_copy(update={"kind": "x"})]), "is not kept"
    yield replace(evidence, overdue_s=-1.0), "longer than it should"

    report = replace(ledger, reports=ledger.reports | {("heart", 1.0): 0.0})
    yield replace(evidence, ledger=report), "the report of heart with 1 bit/s was acknowledged and is lost"
    update = SentUpdate("round-0", "phone-0", "0" * 64, 1)
    acknowledged = replace(ledger, updates=ledger.updates | {update})
    yield replace(evidence, ledger=acknowledged), "update of phone-0 for round-0 was acknowledged and is lost"
    yield replace(evidence, ledger=replace(ledger, sent=set())), "that nobody sent"

    changed = ledger.directory.with_name("changed")
    changed.mkdir()
    for path in ledger.directory.iterdir():
        content = bytearray(path.read_bytes())
        content[-4] ^= 0x80  # a little more, or less, in the last number
        (changed / path.name).write_bytes(content)
    yield replace(evidence, ledger=replace(ledger, directory=changed)), "is not that of the"
