import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from client_sim.commands import reproduce
from client_sim.reproduction.results_file import (
    ResultLine,
    ResultsFileError,
    merge_results,
    open_results,
    read_runs,
)
from client_sim.reproduction.rows import Trial
from tests.unit.client_sim.test_reproduction import FEDCS, FEDLIM, line

ADDED = (
    "deadline_mode",
    "update_encoding",
    "model_encoding",
    "dispatch",
    "model",
    "aggregation",
    "changes",
    "version",
)


def rounds(task_id: str, count: int, trial: Trial = Trial(FEDCS, 0), **changes: object) -> list[ResultLine]:  # noqa: B008
    return [line(trial, number, 0.1, task_id=task_id, **changes) for number in range(1, count + 1)]


def write(path: Path, lines: Sequence[ResultLine]) -> Path:
    with open_results(path) as file:
        file.append(*lines)
    return path


def write_old(path: Path, lines: Sequence[ResultLine], without: Sequence[str] = ADDED) -> Path:
    contents = [line.model_dump(mode="json") for line in lines]
    path.write_text(
        "".join(
            json.dumps({name: value for name, value in content.items() if name not in without}) + "\n"
            for content in contents
        )
    )
    return path


def test_rounds_of_other_machines_are_added_once(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rounds("task-1", 2))
    other = write(tmp_path / "other.jsonl", rounds("task-2", 2, Trial(FEDLIM, 0)))
    longer = write(tmp_path / "longer.jsonl", rounds("task-1", 3))
    assert merge_results([other, longer], results, None) == 3
    assert merge_results([other, longer], results, None) == 0
    assert {run.task_id: len(run.rounds) for run in read_runs(results)} == {"task-1": 3, "task-2": 2}


def test_a_source_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    source = write(tmp_path / "source.jsonl", rounds("task-1", 2))
    with source.open("ab") as file:
        file.write(b'{"dataset": "cif')
    assert merge_results([source], tmp_path / "results.jsonl", None) == 2


def test_lines_of_older_versions_are_completed_with_what_they_ran_with(tmp_path: Path) -> None:
    oldest = write_old(tmp_path / "oldest.jsonl", rounds("task-1", 1))
    adaptive = Trial(FEDCS.with_changes({"deadline_mode": "adaptive", "update_encoding": "int8"}), 0)
    without = ("dispatch", "model", "aggregation", "changes", "version")
    older = write_old(tmp_path / "older.jsonl", rounds("task-2", 1, adaptive), without)
    results = tmp_path / "results.jsonl"
    with pytest.raises(ResultsFileError, match=r"oldest.jsonl: line 1 .* complete it with .* --version"):
        merge_results([oldest], results, None)
    assert merge_results([oldest, older], results, "0.1.0") == 2
    assert [(run.trial, run.version) for run in read_runs(results)] == [
        (Trial(FEDCS, 0), "0.1.0"),
        (adaptive, "0.1.0"),
    ]


def test_changes_that_have_an_own_field_are_moved_to_it(tmp_path: Path) -> None:
    row = FEDCS.with_changes({"model": "paper-cnn-gn", "learning_rate": 0.05})
    content = {
        name: value for name, value in rounds("task-1", 1)[0].model_dump().items() if name not in ADDED
    }
    source, results = tmp_path / "source.jsonl", tmp_path / "results.jsonl"
    source.write_text(json.dumps(content | {"changes": ["model=paper-cnn-gn", "learning_rate=0.05"]}) + "\n")
    merge_results([source], results, "0.2.0")
    assert [run.trial for run in read_runs(results)] == [Trial(row, 0)]


def test_the_version_is_only_that_of_lines_without_one(tmp_path: Path) -> None:
    source = write(tmp_path / "source.jsonl", rounds("task-1", 1))
    results = tmp_path / "results.jsonl"
    merge_results([source], results, "0.1.0")
    assert [run.version for run in read_runs(results)] == ["0.2.0"]


@pytest.mark.parametrize("changes", [{"accuracy": 0.9}, {"version": "0.1.0"}, {"wall_s": 1.0}])
def test_a_round_that_differs_is_a_conflict(changes: dict[str, object], tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rounds("task-1", 2))
    other = [rounds("task-1", 1)[0].model_copy(update=changes), rounds("task-1", 2)[1]]
    (name,) = changes
    source = write(tmp_path / "source.jsonl", other)
    with pytest.raises(ResultsFileError, match=rf"source.jsonl: line 1 differs .* \(task-1\): {name} is"):
        merge_results([source], results, None)
    assert results.read_bytes().count(b"\n") == 2


def test_another_run_of_a_recorded_trial_is_a_conflict(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rounds("task-1", 2))
    good = write(tmp_path / "good.jsonl", rounds("task-3", 1, Trial(FEDLIM, 0)))
    source = write(tmp_path / "source.jsonl", rounds("task-2", 3))
    with pytest.raises(ResultsFileError, match="already recorded as another run: task-1 there, task-2 here"):
        merge_results([good, source], results, None)
    assert len(read_runs(results)) == 1, "nothing is written"


def test_a_trial_of_another_version_is_another_run(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rounds("task-1", 2))
    source = write(tmp_path / "source.jsonl", rounds("task-2", 1, version="0.3.0"))
    assert merge_results([source], results, None) == 1


def test_a_trial_that_was_restarted_on_its_machine_stays_one_file(tmp_path: Path) -> None:
    results = write(tmp_path / "results.jsonl", rounds("task-1", 1))
    source = write(tmp_path / "source.jsonl", rounds("task-1", 1) + rounds("task-2", 2))
    assert merge_results([source], results, None) == 2


def test_a_gap_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    gap = write(tmp_path / "gap.jsonl", rounds("task-1", 2)[1:])
    with pytest.raises(ResultsFileError, match="line 1 is round 2 after 0 rounds"):
        merge_results([gap], results, None)
    with pytest.raises(ResultsFileError, match=r"missing.jsonl: there is no such file"):
        merge_results([tmp_path / "missing.jsonl"], results, None)


def test_the_command_tells_how_many_rounds_it_added(tmp_path: Path) -> None:
    source = write_old(tmp_path / "source.jsonl", rounds("task-1", 2))
    results = tmp_path / "results.jsonl"
    done = CliRunner().invoke(
        reproduce, ["merge", str(source), "--results", str(results), "--version", "0.1.0"]
    )
    assert done.output == f"2 rounds added to {results}\n", done.output
