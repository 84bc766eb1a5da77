import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_sim.reproduction.campaign import NoRowError, TrialPlan
from client_sim.reproduction.comparisons import differences
from client_sim.reproduction.figures import RowFigures, figures_of
from client_sim.reproduction.progress import expected_clients, progress_table, trial_progress
from client_sim.reproduction.results_file import (
    ResultLine,
    ResultsFileError,
    TrialRun,
    open_results,
    read_results,
    read_runs,
)
from client_sim.reproduction.rows import (
    PUBLISHED,
    ExtensionError,
    Row,
    Trial,
    choose_rows,
    parse_change,
    scenario_of,
    trials_of,
)
from client_sim.reproduction.trial import PlannedTrial, UntilError, parse_until
from client_sim.scenario import ScenarioError
from services.domain.tasks import PartitionScheme

FEDCS = Row("cifar-10", "iid", "fedcs", 3, 0.0)
FEDLIM = replace(FEDCS, policy="fedlim")


def line(trial: Trial, number: int, accuracy: float | None, **changes: object) -> ResultLine:
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
    return ResultLine.model_validate(
        {
            **asdict(row),
            "seed": trial.seed,
            "version": "0.2.0",
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
        TrialPlan([])
    assert choose_rows(policy=["fedlim"], round_minutes=[10]) == []


def test_every_row_is_tried_once_before_any_is_tried_twice() -> None:
    assert [trial.seed for trial in trials_of([FEDCS, FEDLIM], range(3))] == [0, 0, 1, 1, 2, 2]


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
    with open_results(path) as results:
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
    with open_results(path) as results:
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
    with open_results(path) as results:
        results.append(line(Trial(FEDCS, 0), 1, 0.1))
    with path.open("ab") as file:
        file.write(b'{"dataset": "cif')
    assert len(read_results(path)[Trial(FEDCS, 0)].rounds) == 1
    with open_results(path) as results:
        results.append(line(Trial(FEDCS, 0), 2, 0.2))
    assert len(read_results(path)[Trial(FEDCS, 0)].rounds) == 2


@pytest.mark.parametrize("text", ["{}", "no json", '{"dataset": 1}', ""])
def test_a_line_that_is_no_result_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(ResultsFileError, match="line 1"):
        read_results(path)


@pytest.mark.parametrize("field", ["deadline_mode", "dispatch", "model", "aggregation", "changes", "version"])
def test_a_line_without_its_settings_is_refused(field: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    content = line(Trial(FEDCS, 0), 1, 0.1).model_dump(mode="json")
    del content[field]
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(ResultsFileError, match=f"line 1 is not a valid result: {field}"):
        read_results(path)


def test_every_documented_line_records_its_settings_and_version() -> None:
    files = list((Path(__file__).parents[3] / "docs" / "results").glob("*.jsonl"))
    assert files
    for path in files:
        assert read_runs(path)


def test_a_run_names_all_versions_that_ran_it() -> None:
    rounds = [line(Trial(FEDCS, 0), number, 0.1, version=f"0.{number}.0") for number in (1, 2)]
    assert TrialRun(Trial(FEDCS, 0), "task-1", rounds).version == "0.1.0 and 0.2.0"


def test_a_missing_round_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_results(path) as results:
        results.append(line(Trial(FEDCS, 0), 2, 0.1))
    with pytest.raises(ResultsFileError, match="line 1 is round 2 after 0 rounds"):
        read_results(path)


def test_two_cannot_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with open_results(path), pytest.raises(ResultsFileError, match="another"), open_results(path):
        pass
    with open_results(path) as results:
        results.append(line(Trial(FEDCS, 0), 1, 0.1))


def test_what_is_left_is_estimated_from_the_pace_so_far() -> None:
    trial, other = Trial(FEDCS, 0), Trial(FEDCS, 1)
    runs = {trial: run(trial, [0.1, 0.2, 0.5])}
    until = parse_until(["0.5", "120min"])
    done, left = trial_progress(runs, [PlannedTrial(each, until) for each in (trial, other)])
    assert (done.minutes_left, done.seconds_left) == (0, 0.0)
    # the other trial reached it in minute 9; 3 rounds with 8 clients, 16 s for 8 clients, two trials at once
    assert left.minutes_left == 9
    assert left.seconds_left == pytest.approx(3 * 16.0 / 2)
    console = Console(width=160, record=True, file=StringIO())
    console.print(progress_table([done, left]))
    shown = console.export_text()
    assert "done" in shown
    assert "1 of 2 left: about 0 min" in shown


def test_the_pace_of_another_model_says_nothing() -> None:
    planned = [PlannedTrial(Trial(FEDCS.with_changes({"model": "resnet18-gn"}), 0), parse_until([]))]
    (only,) = trial_progress({Trial(FEDCS, 0): run(Trial(FEDCS, 0), [0.1])}, planned)
    assert only.seconds_left is None


def test_an_accuracy_is_expected_when_it_was_published_or_at_the_latest_in_the_end() -> None:
    trial = Trial(FEDCS, 0)

    def minutes(*until: str) -> float:
        (only,) = trial_progress({}, [PlannedTrial(trial, parse_until(until))])
        return only.minutes_left

    assert minutes("0.75") == 132.7
    assert minutes("0.75", "60min") == 60
    assert minutes("0.6") == 400, "not published"
    short = {trial: run(trial, [0.1] * 50)}
    (late,) = trial_progress(short, [PlannedTrial(trial, parse_until(["0.75"]))])
    assert late.minutes_left == 400 - 150, "later than published: it may take all the time"


def test_a_trial_that_is_planned_twice_is_counted_once() -> None:
    planned = [
        PlannedTrial(Trial(FEDCS, 0), parse_until(until)) for until in (["0.75"], ["0.75"], ["400min"])
    ]
    assert [found.minutes_left for found in trial_progress({}, planned)] == [132.7, 0, pytest.approx(267.3)]


def test_without_any_run_nobody_knows_how_long_it_takes() -> None:
    (only,) = trial_progress({}, [PlannedTrial(Trial(FEDCS, 0), parse_until([]))])
    assert (only.minutes_left, only.seconds_left) == (400, None)


def test_expected_clients_are_those_of_the_calibrated_cell() -> None:
    assert expected_clients(FEDCS) == pytest.approx(7.60, abs=1.0)
    assert expected_clients(FEDLIM) == pytest.approx(3.48, abs=1.0)


def test_arrivals_are_counted_in_both_ways() -> None:
    runs = [run(Trial(FEDCS, 0), [0.3, 0.5]), run(Trial(FEDCS, 1), [0.3, None, 0.4, 0.6])]
    figures = RowFigures(FEDCS, "0.2.0", runs)
    time_to_accuracy = figures.time_to_accuracy(0.5)
    assert time_to_accuracy.whole_rounds is not None
    assert (time_to_accuracy.whole_rounds.mean, time_to_accuracy.whole_rounds.count) == (9.0, 2)
    assert time_to_accuracy.whole_rounds.deviation == pytest.approx(4.243, abs=1e-3)
    assert time_to_accuracy.actual_ends is not None
    assert time_to_accuracy.actual_ends.mean == pytest.approx(5.0)
    assert time_to_accuracy.never == []
    later = figures.time_to_accuracy(0.6)
    assert later.whole_rounds is not None
    assert (later.whole_rounds.mean, later.whole_rounds.deviation) == (12.0, None)
    assert later.never == [6.0]
    assert figures.time_to_accuracy(0.9).whole_rounds is None


def test_the_accuracy_at_a_moment_is_that_of_trials_that_went_so_far() -> None:
    short, long_ = run(Trial(FEDCS, 0), [0.3, 0.5]), run(Trial(FEDCS, 1), [0.1, None, 0.4])
    figures = RowFigures(FEDCS, "0.2.0", [short, long_])
    at_nine, at_six = figures.accuracy_at(9), figures.accuracy_at(6)
    assert at_nine is not None
    assert (at_nine.mean, at_nine.count) == (0.4, 1)
    assert at_six is not None
    assert at_six.mean == pytest.approx((0.5 + 0.1) / 2)
    assert figures.accuracy_at(400) is None


def test_every_figure_of_a_row_is_compared() -> None:
    figures = RowFigures(FEDCS, "0.2.0", [run(Trial(FEDCS, 0), [0.3, 0.5])])
    told = [(item.what, tuple(item.reasons)) for item in differences(figures)]
    assert told[0] == ("8.0 clients per round where the paper has 7.7 (+4%)", ("radio",))
    assert told[1][0] == "accuracy 0.5 after 6.0 min, 19.8 min earlier than the paper's 25.8"
    assert "few trials" in told[1][1]
    assert told[2] == ("accuracy 0.75 not reached in 6 min; the paper: 132.7 min", ("not finished",))
    assert told[3][0].startswith("no final accuracy: ran for 6 of 400 minutes")


def test_a_row_that_was_followed_to_the_end_has_a_final_accuracy() -> None:
    row = Row("cifar-10", "non-iid", "fedlim", 5, 0.0)
    figures = RowFigures(row, "0.2.0", [run(Trial(row, seed), [0.2] * 79 + [0.33]) for seed in range(10)])
    assert all("not finished" not in item.reasons for item in differences(figures))
    told = [item.what for item in differences(figures)]
    assert told[:2] == [
        "accuracy 0.35 not reached in 400 min, nor in the paper",
        "accuracy 0.5 not reached in 400 min, nor in the paper",
    ]
    assert told[2] == "final accuracy 0.330; the paper has 0.31 (+0.020)"


def test_rows_are_in_the_order_of_the_tables_and_extensions_last() -> None:
    extended = FEDCS.with_changes({"deadline_mode": "adaptive"})
    trials = (Trial(extended, 0), Trial(FEDCS, 1), Trial(FEDCS, 0), Trial(FEDLIM, 0))
    found = figures_of([run(trial, [0.1]) for trial in trials])
    assert [figures.row for figures in found] == [FEDLIM, FEDCS, extended]
    assert [item.trial.seed for item in found[1].runs] == [0, 1]


def test_trials_of_different_versions_are_not_averaged() -> None:
    old = run(Trial(FEDCS, 0), [0.1, 0.6], version="0.1.0")
    new = [run(Trial(FEDCS, seed), [0.1, 0.2, 0.6]) for seed in (0, 1)]
    found = figures_of([old, *new])
    assert [(figures.version, len(figures.runs)) for figures in found] == [("0.1.0", 1), ("0.2.0", 2)]
    means = [figures.time_to_accuracy(0.5).whole_rounds for figures in found]
    assert [spread.mean for spread in means if spread is not None] == [6.0, 9.0]


def test_of_a_trial_that_was_restarted_the_longest_run_counts() -> None:
    found = figures_of([run(Trial(FEDCS, 0), [0.1, 0.2]), run(Trial(FEDCS, 0), [0.3])])
    assert [len(item.rounds) for item in found[0].runs] == [2]


def test_rows_beyond_the_paper_have_their_own_name_and_terms() -> None:
    (paper,) = choose_rows(
        dataset=["fashion-mnist"], setting=["iid"], policy=["fedcs"], round_minutes=[3], uncertainty=[0.0]
    )
    row = paper.with_changes(
        {"deadline_mode": "adaptive", "update_encoding": "int8", "model_encoding": "float16"}
    )
    assert row.name == "fedcs, adaptive, at most 3 min, int8/float16"
    assert Trial(row, 1).slug == "fashion-mnist-iid-fedcs-3min-r0-adaptive-int8-float16-seed1"
    task = scenario_of(Trial(row, 1)).task
    assert (task.deadline_mode, task.update_encoding, task.model_encoding) == ("adaptive", "int8", "float16")
    assert row.paper_row == paper
    assert paper.with_changes({"deadline_mode": "fixed", "update_encoding": "float32"}) == paper


def test_a_row_may_change_any_field_of_the_task() -> None:
    row = FEDCS.with_changes({"learning_rate": 0.05, "aggregation": "uniform"})
    assert row == FEDCS.with_changes({"aggregation": "uniform"}).with_changes({"learning_rate": 0.05})
    assert row.name == "fedcs, 3 min, aggregation=uniform, learning_rate=0.05"
    task = scenario_of(Trial(row, 0)).task
    assert (task.learning_rate, task.aggregation, task.aggregation_parameters) == (0.05, "uniform", {})
    slugs = {Trial(changed, 0).slug for changed in (FEDCS, row, FEDCS.with_changes({"learning_rate": 0.1}))}
    assert len(slugs) == 3


def test_another_deadline_is_another_row() -> None:
    row = FEDCS.with_changes({"round_deadline_s": 120, "learning_rate": 0.05})
    assert (row.round_minutes, row.changes) == (2, ("learning_rate=0.05",))
    assert scenario_of(Trial(row, 0)).task.round_deadline_s == 120
    assert FEDCS.with_changes({"round_deadline_s": 300.0}) == replace(FEDCS, round_minutes=5)
    for deadline in (90, 0, -60, "soon"):
        with pytest.raises(ExtensionError, match="round_deadline_s"):
            FEDCS.with_changes({"round_deadline_s": deadline})


def test_a_policy_of_ours_takes_the_settings_of_fedcs() -> None:
    rows = choose_rows(policy=["optimal"], dataset=["cifar-10"], setting=["iid"], uncertainty=[0.0])
    assert [(row.policy, row.round_minutes) for row in rows] == [
        ("optimal", minutes) for minutes in (3, 1, 5, 10)
    ]
    assert rows[0].paper_row == FEDCS
    assert len(choose_rows()) == 18


@pytest.mark.parametrize("changes", [{"policy": "fl"}, {"seed": 1}, {"clock": "wall"}])
def test_what_the_row_determines_is_not_changed(changes: dict[str, object]) -> None:
    with pytest.raises(ExtensionError, match=next(iter(changes))):
        FEDCS.with_changes(changes)


def test_settings_that_the_service_does_not_have_are_named() -> None:
    with pytest.raises(ScenarioError, match="no_such_field: there is no such key"):
        scenario_of(Trial(FEDCS.with_changes({"no_such_field": 1}), 0))


def test_changes_are_json_or_text() -> None:
    assert parse_change("learning_rate=0.05") == ("learning_rate", 0.05)
    assert parse_change("model=paper-cnn") == ("model", "paper-cnn")
    assert parse_change('a={"b": 1}') == ("a", {"b": 1})
    for text in ("model", "=1"):
        with pytest.raises(ExtensionError, match="NAME=VALUE"):
            parse_change(text)
