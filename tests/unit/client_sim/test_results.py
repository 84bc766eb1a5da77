import csv
import errno
import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_sim.results import (
    ResultsError,
    RunRecord,
    check_unused,
    read_finished,
    remove_results,
    summary_table,
    write_file,
    write_results,
)
from client_sim.scenario import Scenario
from tests.unit.client_sim.run_records import round_record, run_record

FEDCS = run_record(
    "fedcs",
    [
        round_record(1, received=8, late=2, accuracy=0.3),
        round_record(2, received=9, late=0, accuracy=0.8),
        round_record(3, received=7, late=1, accuracy=0.6),
        round_record(4, received=4, late=1),
    ],
)
FEDLIM = run_record("fedlim", [round_record(1, received=3, late=0, accuracy=0.2)])
EMPTY = run_record("fl", [])


def shown(runs: list[RunRecord]) -> str:
    text = StringIO()
    Console(width=100, file=text).print(summary_table(runs))
    return text.getvalue()


def test_what_is_made_of_the_rounds() -> None:
    assert FEDCS.clients_per_round == 7
    assert FEDCS.late_share == 4 / 40
    assert (FEDCS.final_accuracy, FEDCS.best_accuracy) == (0.6, 0.8)
    assert (FEDCS.time_to_s(0.3), FEDCS.time_to_s(0.5), FEDCS.time_to_s(0.9)) == (60, 120, None)


def test_of_no_rounds_nothing_is_claimed() -> None:
    assert EMPTY.clients_per_round is EMPTY.late_share is EMPTY.final_accuracy is EMPTY.best_accuracy is None
    assert EMPTY.time_to_s(0.0) is None
    nobody = run_record("fedcs", [round_record(1, selected=0, received=0, late=0)])
    assert (nobody.clients_per_round, nobody.late_share) == (0, None)


def test_the_files_say_it_to_machines(tmp_path: Path) -> None:
    out = tmp_path / "not" / "there"
    write_results(out, [FEDCS, FEDLIM, EMPTY], [0.5])
    with (out / "rounds.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["number"], row["received"]) for row in rows] == [
        ("fedcs", "1", "8"),
        ("fedcs", "2", "9"),
        ("fedcs", "3", "7"),
        ("fedcs", "4", "4"),
        ("fedlim", "1", "3"),
    ]
    assert (rows[1]["accuracy"], rows[3]["accuracy"], rows[0]["task_id"]) == ("0.8", "", "task-fedcs-0")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    fedcs, fedlim, empty = summary["runs"]
    assert (fedcs["rounds"], fedcs["clients_per_round"], fedcs["late_share"]) == (4, 7, 0.1)
    assert (fedcs["time_to_accuracy_s"], fedlim["time_to_accuracy_s"]) == ({"0.5": 120}, {"0.5": None})
    assert (empty["policy"], empty["final_accuracy"]) == ("fl", None)
    assert Scenario.model_validate_json(json.dumps(fedlim["scenario"])) == FEDLIM.scenario
    assert summary["versions"].keys() == {"python", "fedcs-operator", "httpx", "numpy"}
    assert sorted(path.name for path in out.iterdir()) == ["rounds.csv", "summary.json"]


def test_results_are_written_over(tmp_path: Path) -> None:
    write_results(tmp_path, [FEDCS])
    write_results(tmp_path, [FEDLIM])
    assert "fedcs," not in (tmp_path / "rounds.csv").read_text(encoding="utf-8")


def test_the_table_has_the_runs_beside_each_other() -> None:
    text = shown([FEDCS, FEDLIM])
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in rows_of(text)}
    assert cells["clients per round"] == ["7.00", "3.00"]
    assert cells["late"] == ["10.0%", "0.0%"]
    assert cells["minutes to 0.5"] == ["2.0", "–"]
    assert cells["final accuracy"] == ["0.600", "0.200"]
    assert "minutes to 0.9" not in cells


def test_the_table_leaves_out_what_nobody_knows() -> None:
    text = shown([run_record("fedcs", [round_record(1)])])
    assert "clients per round" in text
    assert "accuracy" not in text
    assert "minutes" not in text


def rows_of(text: str) -> list[list[str]]:
    return [line.strip("│ \n").split("│") for line in text.splitlines() if line.startswith("│")]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ResultsError, match=r"/file/out/rounds\.csv cannot be written: Not a directory"):
        write_results(file / "out", [FEDCS])


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    write_results(tmp_path, [FEDCS])
    before = (tmp_path / "rounds.csv").read_bytes()
    (tmp_path / ".rounds.csv.partial").symlink_to("/dev/full")
    with pytest.raises(ResultsError, match=r"rounds\.csv cannot be written: No space left on device"):
        write_results(tmp_path, [FEDLIM])
    assert (tmp_path / "rounds.csv").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rounds.csv", "summary.json"]
    assert Path("/dev/full").is_char_device()


def test_a_folder_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "plot.png").mkdir()
    with pytest.raises(ResultsError, match=os.strerror(errno.EISDIR)):
        write_file(tmp_path / "plot.png", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_trials_are_compared_by_mean_and_standard_deviation(tmp_path: Path) -> None:
    def trial(seed: int, accuracy: float, swept: str = "") -> RunRecord:
        return replace(run_record("fedcs", [round_record(1, accuracy=accuracy)], seed=seed), swept=swept)

    runs = [trial(0, 0.2), trial(1, 0.4), trial(2, 0.6), trial(0, 0.9, swept="local_epochs=2")]
    text = shown(runs)
    cells = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in rows_of(text)}
    assert "fedcs, local_epochs=2" in text
    assert cells["trials"] == ["3", "1"]
    assert cells["final accuracy"] == ["0.400 ± 0.200", "0.900"]
    assert cells["minutes to 0.5"] == ["1.0 (1 of 3)", "1.0"]
    write_results(tmp_path, runs)
    trials = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["trials"]
    assert [(item["policy"], item["swept"], item["trials"]) for item in trials] == [
        ("fedcs", "", 3),
        ("fedcs", "local_epochs=2", 1),
    ]
    assert trials[0]["figures"]["final accuracy"] == {"mean": pytest.approx(0.4), "std": pytest.approx(0.2)}
    assert trials[1]["figures"]["final accuracy"] == {"mean": 0.9, "std": None}


def test_finished_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    swept = replace(FEDLIM, swept="cell.clients=50", initial_accuracy=0.125)
    write_results(tmp_path, [FEDCS, replace(EMPTY, outcome=None), swept])
    assert read_finished(tmp_path) == [FEDCS, swept]


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("rounds.csv", None, "no results to resume"),
        ("summary.json", "{", "cannot be read"),
        ("summary.json", '{"runs": [{"outcome": "done"}]}', "cannot be read"),
        ("rounds.csv", "task_id,number\n", "rounds.csv has 0 of the 4 rounds"),
    ],
)
def test_damaged_results_are_not_resumed(
    file: str, content: str | None, complaint: str, tmp_path: Path
) -> None:
    write_results(tmp_path, [FEDCS])
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ResultsError, match=complaint):
        read_finished(tmp_path)


def test_results_are_not_overwritten_silently(tmp_path: Path) -> None:
    check_unused(tmp_path / "new")
    assert not remove_results(tmp_path)
    write_results(tmp_path, [FEDCS])
    with pytest.raises(ResultsError, match="--resume"):
        check_unused(tmp_path)
    assert remove_results(tmp_path)
    check_unused(tmp_path)


def test_a_run_in_which_nobody_is_selected() -> None:
    nobody = [round_record(number, selected=0, received=0, late=0) for number in (1, 2)]
    assert run_record("fedcs", nobody).selected_nobody
    assert not run_record("fedcs", [*nobody, round_record(3)]).selected_nobody
    assert not EMPTY.selected_nobody
