from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_sim.reproduction.figures import RowFigures, figures_of
from client_sim.reproduction.listing import expected_clients, standings, standings_table
from client_sim.reproduction.reproduction import NoRowError, Wanted
from client_sim.reproduction.results_file import (
    Line,
    ResultsFileError,
    TrialRun,
    appending_to,
    read_results,
    read_runs,
)
from client_sim.reproduction.rows import PUBLISHED, Row, Trial, choose_rows, scenario_of, trials_of
from client_sim.reproduction.statements import differences
from client_sim.reproduction.until import UntilError, parse_until
from services.domain.tasks import PartitionScheme

FEDCS = Row("cifar-10", "iid", "fedcs", 3, 0.0)
FEDLIM = replace(FEDCS, policy="fedlim")


def line(trial: Trial, number: int, accuracy: float | None, **changes: object) -> Line:
    values = {
        "task_id": "task-1",
        "number": number,
        "asked": 100,
        "selected": 8,
        "received": 8,
        "late": 0,
        "dropped": 0,
        "rejected": 0,
        "elapsed_s": 60.0 * trial.row.round_minutes * number,
        "duration_s": 100.0,
        "accuracy": accuracy,
        "loss": 1.0,
        "wall_s": 16.0,
    }
    row = trial.row
    return Line.model_validate(
        {
            "dataset": row.dataset,
            "setting": row.setting,
            "policy": row.policy,
            "round_minutes": row.round_minutes,
            "uncertainty": row.uncertainty,
            "seed": trial.seed,
        }
        | values
        | changes
    )


def run(trial: Trial, accuracies: Sequence[float | None], **changes: object) -> TrialRun:
    rounds = [line(trial, number, accuracy, **changes) for number, accuracy in enumerate(accuracies, start=1)]
    return TrialRun(trial, "task-1", rounds)


def test_the_rows_are_those_of_the_two_tables() -> None:
    assert len(PUBLISHED) == 18
    assert len(choose_rows(setting=["non-iid"])) == 4
    assert choose_rows(dataset=["cifar-10"], setting=["iid"], round_minutes=[3], uncertainty=[0.0]) == [
        FEDLIM,
        FEDCS,
    ]
    assert [row.round_minutes for row in choose_rows(dataset=["fashion-mnist"], round_minutes=[1, 10])] == [
        1,
        10,
    ]
    assert PUBLISHED[FEDCS].minutes_to == {0.5: 25.8, 0.75: 132.7}


def test_a_choice_without_a_row_is_refused() -> None:
    with pytest.raises(NoRowError, match="no row"):
        Wanted(trials_of(choose_rows(policy=["fedlim"], round_minutes=[10]), 3), parse_until([]))


def test_every_row_is_tried_once_before_any_is_tried_twice() -> None:
    assert [trial.seed for trial in trials_of([FEDCS, FEDLIM], 3)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("row", PUBLISHED, ids=str)
def test_a_scenario_is_the_row(row: Row) -> None:
    scenario = scenario_of(Trial(row, 7))
    assert scenario.seed == scenario.task.seed == 7
    assert scenario.behaviour.uncertainty == row.uncertainty
    assert scenario.task.dataset == row.dataset
    assert scenario.task.policy == row.policy
    assert scenario.task.round_deadline_s == 60 * row.round_minutes
    assert scenario.task.final_deadline_s == 24_000
    assert (
        scenario.task.model_size_bytes == {"cifar-10": 18_300_000, "fashion-mnist": 14_400_000}[row.dataset]
    )
    non_iid = scenario.task.partition_scheme is PartitionScheme.NON_IID
    assert non_iid is (row.setting == "non-iid")


def test_until_a_time_or_an_accuracy() -> None:
    both = parse_until(["0.85", "120min"])
    assert (both.minutes, both.accuracy) == (120, 0.85)
    assert not both.reached(7020, 0.84, 180)
    assert both.reached(7020, 0.85, 180)
    assert both.reached(7200, None, 180)
    assert both.reached(7080, 0.2, 180), "another round would end after 123 minutes"
    assert parse_until([]).minutes == 400
    assert parse_until(["0.5"]).minutes == 400


@pytest.mark.parametrize(
    "texts",
    [["5"], ["0"], ["-1min"], ["401min"], ["nan"], ["infmin"], ["soon"], ["0.5", "0.6"], ["1min", "2min"]],
)
def test_until_something_else_is_refused(texts: list[str]) -> None:
    with pytest.raises(UntilError, match="--until"):
        parse_until(texts)


def test_lines_come_back_as_runs(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    with appending_to(path) as results:
        for number in (1, 2):
            for trial in (Trial(FEDCS, 0), Trial(FEDCS, 1)):
                results.append(line(trial, number, 0.1 * number, task_id=f"task-{trial.seed}"))
    runs = read_results(path)
    assert list(runs) == [Trial(FEDCS, 0), Trial(FEDCS, 1)]
    assert runs[Trial(FEDCS, 1)].task_id == "task-1"
    assert runs[Trial(FEDCS, 1)].best_accuracy == 0.2
    assert runs[Trial(FEDCS, 1)].elapsed_s == 360


def test_of_a_trial_that_was_begun_anew_the_run_counts_that_got_farther(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    trial = Trial(FEDCS, 0)
    with appending_to(path) as results:
        for task_id, rounds in (("first", 2), ("second", 3), ("third", 1)):
            for number in range(1, rounds + 1):
                results.append(line(trial, number, None, task_id=task_id))
    assert read_results(path)[trial].task_id == "second"
    assert [(run.task_id, len(run.rounds)) for run in read_runs(path)] == [
        ("first", 2),
        ("second", 3),
        ("third", 1),
    ]


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with appending_to(path) as results:
        results.append(line(Trial(FEDCS, 0), 1, 0.1))
    with path.open("ab") as file:
        file.write(b'{"dataset": "cif')
    assert len(read_results(path)[Trial(FEDCS, 0)].rounds) == 1
    with appending_to(path) as results:
        results.append(line(Trial(FEDCS, 0), 2, 0.2))
    assert len(read_results(path)[Trial(FEDCS, 0)].rounds) == 2


@pytest.mark.parametrize("text", ["{}", "no json", '{"dataset": 1}', ""])
def test_a_line_that_is_no_result_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(ResultsFileError, match="line 1"):
        read_results(path)


def test_a_missing_round_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with appending_to(path) as results:
        results.append(line(Trial(FEDCS, 0), 2, 0.1))
    with pytest.raises(ResultsFileError, match="line 1 is round 2 after 0 rounds"):
        read_results(path)


def test_two_cannot_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with appending_to(path), pytest.raises(ResultsFileError, match="another"), appending_to(path):
        pass
    with appending_to(path) as results:
        results.append(line(Trial(FEDCS, 0), 1, 0.1))


def test_what_is_left_is_estimated_from_the_pace_so_far() -> None:
    trial, other = Trial(FEDCS, 0), Trial(FEDCS, 1)
    runs = {trial: run(trial, [0.1, 0.2, 0.5])}
    until = parse_until(["0.5", "120min"])
    done, left = standings(runs, [trial, other], until)
    assert (done.rounds_left, done.seconds_left) == (0, 0.0)
    # 40 rounds with 8 clients, 16 s for 8 clients, two trials at once
    assert (left.rounds_left, left.seconds_left) == (40, 40 * 16.0 / 2)
    console = Console(width=120, record=True, file=StringIO())
    console.print(standings_table([done, left], until))
    shown = console.export_text()
    assert "done" in shown
    assert "40 rounds, 5 min" in shown


def test_without_any_run_nobody_knows_how_long_it_takes() -> None:
    (only,) = standings({}, [Trial(FEDCS, 0)], parse_until([]))
    assert (only.rounds_left, only.seconds_left) == (133, None)


def test_expected_clients_are_those_of_the_calibrated_cell() -> None:
    assert expected_clients(FEDCS) == pytest.approx(7.60, abs=1.0)
    assert expected_clients(FEDLIM) == pytest.approx(3.48, abs=1.0)


def test_arrivals_are_counted_in_both_ways() -> None:
    runs = [run(Trial(FEDCS, 0), [0.3, 0.5]), run(Trial(FEDCS, 1), [0.3, None, 0.4, 0.6])]
    figures = RowFigures(FEDCS, runs)
    arrival = figures.arrival(0.5)
    assert arrival.whole_rounds is not None
    assert (arrival.whole_rounds.mean, arrival.whole_rounds.count) == (9.0, 2)
    assert arrival.whole_rounds.deviation == pytest.approx(4.243, abs=1e-3)
    assert arrival.actual_ends is not None
    assert arrival.actual_ends.mean == pytest.approx(5.0)
    assert arrival.never == []
    later = figures.arrival(0.6)
    assert later.whole_rounds is not None
    assert (later.whole_rounds.mean, later.whole_rounds.deviation) == (12.0, None)
    assert later.never == [6.0]
    assert figures.arrival(0.9).whole_rounds is None


def test_the_accuracy_at_a_moment_is_that_of_trials_that_went_so_far() -> None:
    short, long_ = run(Trial(FEDCS, 0), [0.3, 0.5]), run(Trial(FEDCS, 1), [0.1, None, 0.4])
    figures = RowFigures(FEDCS, [short, long_])
    at_nine, at_six = figures.accuracy_at(9), figures.accuracy_at(6)
    assert at_nine is not None
    assert (at_nine.mean, at_nine.count) == (0.4, 1)
    assert at_six is not None
    assert at_six.mean == pytest.approx((0.5 + 0.1) / 2)
    assert figures.accuracy_at(400) is None


def test_every_figure_of_a_row_is_compared() -> None:
    figures = RowFigures(FEDCS, [run(Trial(FEDCS, 0), [0.3, 0.5])])
    told = [(one.what, tuple(one.reasons)) for one in differences(figures)]
    assert told[0] == ("8.0 clients per round where the paper has 7.7 (+4%)", ("radio",))
    assert told[1][0] == "accuracy 0.5 after 6.0 min, 19.8 min earlier than the paper's 25.8"
    assert "few trials" in told[1][1]
    assert told[2] == ("accuracy 0.75 not reached in 6 min; the paper: 132.7 min", ("not over",))
    assert told[3][0].startswith("no final accuracy: followed for 6 of 400 minutes")


def test_a_row_that_was_followed_to_the_end_has_a_final_accuracy() -> None:
    row = Row("cifar-10", "non-iid", "fedlim", 5, 0.0)
    figures = RowFigures(row, [run(Trial(row, seed), [0.2] * 79 + [0.33]) for seed in range(10)])
    assert all("not over" not in one.reasons for one in differences(figures))
    told = [one.what for one in differences(figures)]
    assert told[:2] == [
        "accuracy 0.35 not reached in 400 min, nor in the paper",
        "accuracy 0.5 not reached in 400 min, nor in the paper",
    ]
    assert told[2] == "final accuracy 0.330; the paper has 0.31 (+0.020)"


def test_rows_are_in_the_order_of_the_tables() -> None:
    runs = {trial: run(trial, [0.1]) for trial in (Trial(FEDCS, 1), Trial(FEDCS, 0), Trial(FEDLIM, 0))}
    found = figures_of(runs)
    assert [figures.row for figures in found] == [FEDLIM, FEDCS]
    assert [one.trial.seed for one in found[1].runs] == [0, 1]
