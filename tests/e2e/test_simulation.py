"""The simulator in simulated time against the real service, with real workers where something is trained."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from urllib.parse import urlsplit

import numpy as np
import pytest

from client_sim.results import RoundRecord
from client_sim.runs import RunError
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import SimulatedRun, run_simulated
from fedcs_client.api import AsyncApi
from services.domain.resources import LocalWork, draw_candidates
from services.domain.selection import make_policy
from services.protocol.client_selection import SelectionTerms, select_clients
from services.startup import read_announcement
from tests.integration.cell import fresh_name
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "2") as found:
        yield found


def run(stack: Stack, scenario: Scenario, *, training: bool = False) -> SimulatedRun:
    async def main() -> SimulatedRun:
        async with AsyncApi(str(stack.service.base_url), OPERATOR_KEY) as api:
            return await run_simulated(
                api, scenario, name=fresh_name(), training=training, on_round=lambda _: None
            )

    return asyncio.run(main())


def paper_cell(rounds: int, **changes: object) -> Scenario:
    """The paper's cell; small stand-in updates, because only who sends them matters."""
    scenario = load_scenario("paper-cifar-10")
    return scenario.changed(rounds=rounds, clients=200, model_bytes=2000, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["fedcs", "fedlim"])
def test_clients_per_round_are_those_that_the_domain_selects(policy: str, stack: Stack) -> None:
    simulated = run(stack, paper_cell(8, policy=policy, seed=3))
    task = simulated.record.scenario.task
    terms = SelectionTerms(LocalWork(18_300_000, 5, 10), task.round_deadline_s, 0.0, 0.0)
    expected = []
    for number in range(1, 9):
        rng = np.random.default_rng([3, number])
        drawn = draw_candidates(200, task.request_fraction, rng)
        all_reports = simulated.fleet.reports
        plan = select_clients(all_reports.of(drawn), terms, make_policy(policy, {}), [3, number])
        expected.append(len(plan.schedule))
    assert [record.received for record in simulated.record.rounds] == expected
    assert all(record.late == record.dropped == record.rejected == 0 for record in simulated.record.rounds)
    assert simulated.record.rounds[-1].elapsed_s == 8 * 180


def test_the_late_share_is_that_of_the_model(stack: Stack) -> None:
    """Against an independent Monte Carlo of the same schedules; both are counts with a known error."""
    seen: list[tuple[int, list[float], list[float], float]] = []
    scenario = paper_cell(25, uncertainty=0.2, seed=5)
    simulated = run(stack, scenario)
    late = sum(record.late for record in simulated.record.rounds)
    received = sum(record.received for record in simulated.record.rounds)
    assert late > 0
    rounds = stack.service.get(
        "/rounds", params={"task_id": simulated.record.task_id, "per_page": 100}
    ).json()
    for round_ in rounds:
        schedule = stack.service.get(f"/rounds/{round_['round_id']}/schedule").json()
        slots = schedule["slots"]
        seen.append(
            (
                len(slots),
                [slot["update_s"] for slot in slots],
                [slot["upload_s"] for slot in slots],
                schedule["distribution_s"],
            )
        )
        assert sum(slot["outcome"] == "late" for slot in slots) == next(
            record.late for record in simulated.record.rounds if record.number == round_["number"]
        )
    rng = np.random.default_rng(99)
    totals = []
    for _ in range(400):
        total = 0
        for count, updates, uploads, distribution_s in seen:
            speeds = np.abs(rng.normal(1.0, 0.2, (2, count)))
            free_s = 0.0
            for update_s, upload_s, processor, radio in zip(updates, uploads, *speeds, strict=True):
                free_s = max(free_s, update_s / processor) + upload_s / radio
                total += distribution_s + free_s >= 180.0
        totals.append(total)
    assert abs(late - np.mean(totals)) < 4 * np.std(totals)
    assert received + late == sum(count for count, *_ in seen)


def test_dropouts_never_upload_and_the_round_goes_on_without_them(stack: Stack) -> None:
    simulated = run(stack, paper_cell(6, dropout=0.5, seed=1))
    rounds = simulated.record.rounds
    assert sum(record.dropped for record in rounds) > 0
    assert all(record.selected == record.received + record.dropped for record in rounds)


def test_a_run_with_traces_is_reproducible(stack: Stack, tmp_path: Path) -> None:
    """Reports are as old as the round is long, so some uploads are late; without outages in between none."""
    steady, varied = tmp_path / "steady.up", tmp_path / "varied.csv"
    steady.write_text("".join(f"{ms}\n" for ms in range(1000)), encoding="utf-8")
    speeds = np.random.default_rng(0).uniform(0, 4e6, 100)
    rows = "".join(f"{20 * row},{speed}\n" for row, speed in enumerate(speeds))
    varied.write_text(f"time_s,bps\n{rows}", encoding="utf-8")
    first, again = (run(stack, paper_cell(4, seed=2).changed(traces=[str(varied)])) for _ in range(2))
    assert [_comparable(round_) for round_ in first.record.rounds] == [
        _comparable(round_) for round_ in again.record.rounds
    ]
    assert sum(record.late for record in first.record.rounds) > 0
    assert first.last_round is not None
    assert again.last_round is not None
    ends_s, same_s = (
        [slot.upload_end_s for slot in run_.last_round.simulated_slots]
        for run_ in (first, again)
        if run_.last_round is not None
    )
    assert ends_s == same_s
    kept = run(stack, paper_cell(2, seed=2).changed(traces=[str(steady)]))
    assert sum(record.late for record in kept.record.rounds) == 0
    assert kept.last_round is not None
    for slot, planned in zip(kept.last_round.simulated_slots, kept.last_round.schedule.slots, strict=True):
        assert slot.upload_s == planned.upload_s == 8 * 18_300_000 / 12e6
        assert slot.upload_end_s == pytest.approx(planned.window_end_s, abs=1e-7)


def test_a_run_ends_with_its_task(stack: Stack) -> None:
    scenario = Scenario.model_validate(
        paper_cell(100).model_dump()
        | {"rounds": None, "task": paper_cell(1).task.model_dump() | {"final_deadline_s": 400.0}}
    )
    record = run(stack, scenario).record
    assert [round_.elapsed_s for round_ in record.rounds] == [180.0, 360.0]
    assert record.outcome == "The final deadline leaves no time for a round."


def test_rounds_that_fail_are_rounds_too(stack: Stack) -> None:
    scenario = paper_cell(2)
    nobody_fits = scenario.task.model_copy(update={"round_deadline_s": 0.001})
    record = run(stack, scenario.model_copy(update={"task": nobody_fits})).record
    assert [(round_.selected, round_.received) for round_ in record.rounds] == [(0, 0), (0, 0)]


def test_a_task_that_fails_ends_the_run_with_its_reason(stack: Stack) -> None:
    scenario = load_scenario("small").changed(rounds=1, clients=10)
    unknown = scenario.task.model_copy(update={"model": "os:getcwd"})
    with pytest.raises(RunError, match=r"failed: .*may not be imported"):
        run(stack, scenario.model_copy(update={"task": unknown}), training=True)


def test_after_a_kill_of_everything_the_run_goes_on_to_the_same_end(stack: Stack, tmp_path: Path) -> None:
    """The same run, undisturbed and disturbed, ends with the same models as far as their scores can tell."""
    scenario = load_scenario("small").changed(rounds=2, clients=10)
    undisturbed = run(stack, scenario, training=True)
    with ExitStack() as running:
        first = running.enter_context(up(tmp_path, port=0))

        def restart() -> None:
            first.process.kill()
            first.process.wait()
            running.enter_context(up(tmp_path, port=urlsplit(first.url).port or 0))

        def restart_during_the_second_round(record: RoundRecord) -> None:
            if record.number == 1:
                Timer(0.4, restart).start()

        async def main() -> SimulatedRun:
            async with AsyncApi(first.url, OPERATOR_KEY) as api:
                return await run_simulated(
                    api, scenario, name="fleet", training=True, on_round=restart_during_the_second_round
                )

        disturbed = asyncio.run(main())
        assert first.process.returncode is not None
    assert [_comparable(round_) for round_ in disturbed.record.rounds] == [
        _comparable(round_) for round_ in undisturbed.record.rounds
    ]


@dataclass
class Up:
    url: str
    process: subprocess.Popen[str]


@contextmanager
def up(data_dir: Path, port: int) -> Iterator[Up]:
    """``fedcs up``."""
    command = [sys.executable, "-m", "operator_api", "up", "--port", str(port), "--data-dir", str(data_dir)]
    environment = os.environ | {"FEDCS_OPERATOR_KEY": OPERATOR_KEY}
    with (
        (data_dir / "up.log").open("a") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            announcement = read_announcement(process.stdout)
            assert announcement is not None
            yield Up(announcement.url, process)
        finally:
            process.terminate()


def _comparable(record: RoundRecord) -> tuple[object, ...]:
    return record.number, record.received, record.accuracy, record.loss, record.elapsed_s, record.duration_s
