from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from client_sim.reproduction.comparisons import changes_of, compare_extensions, findings
from client_sim.reproduction.figures import figures_of
from client_sim.reproduction.non_iid import STUDY
from client_sim.reproduction.report import NoResultsError, make_report, paper_tables, write_report
from client_sim.reproduction.results_file import TrialRun, open_results
from client_sim.reproduction.rows import PUBLISHED, Trial, compared_row
from tests.unit.client_sim.test_reproduction import FEDCS, FEDLIM, line, run

ADAPTIVE = FEDCS.with_changes({"deadline_mode": "adaptive"})


def adaptive_run(seed: int, accuracies: Sequence[float], **changes: object) -> TrialRun:
    """A run with rounds of one minute."""
    trial = Trial(ADAPTIVE, seed)
    rounds = [
        line(trial, number, accuracy, elapsed_s=60.0 * number, duration_s=60.0, **changes)
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    return TrialRun(trial, "task-1", rounds)


def test_the_report_has_our_figures_beside_the_published_ones(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "report"
    uncertain, short = replace(FEDCS, uncertainty=0.1), replace(FEDCS, round_minutes=1)
    with open_results(results) as file:
        for row, counts in ((FEDCS, 8), (FEDLIM, 4), (uncertain, 8), (short, 2), (ADAPTIVE, 5)):
            for seed in (0, 1):
                for number, accuracy in enumerate((0.2, 0.4, 0.6), start=1):
                    trial = Trial(row, seed)
                    file.append(line(trial, number, accuracy, task_id=trial.slug, received=counts))
    written = write_report(results, out)
    assert all(path.stat().st_size > 100 for path in written)
    text = (out / "report.md").read_text()
    assert "| FedCS, 3 min | published | 25.8 | 132.7 | 0.79 | 10.6 | 33.5 | 0.91 |" in text
    assert "|  | ours, version 0.2.0 | 9.0 ± 0.0 (2) [5.0] | not in 9 (2) | – | – | – | – |" in text
    assert "| fedcs, 3 min, version 0.2.0 | 2 | 9 min | 8.00 ± 0.00 (paper 7.7) | 0.0% | – / – |" in text
    assert "FedCS has 2.00 times FedLim's clients" in text
    assert "16.8 min earlier than the paper's 25.8" in text
    assert "| seed 0: 9.0 / 9.0 min = 1.00; seed 1: 9.0 / 9.0 min = 1.00 | 1.00 (2) [1.00] | 0.2.0 |" in text
    plots = {path.name for path in written if path.suffix == ".png"}
    assert plots == {
        "time-to-accuracy.png",
        *(
            f"cifar-10-iid-{name}.png"
            for name in ("accuracy", "clients", "totals", "deadlines", "extensions")
        ),
    }
    assert all(f"({name})" in text for name in plots)
    html = (out / "report.html").read_text()
    assert html.count("data:image/png;base64,") == len(plots)
    assert "<table>" in html
    assert ".png" not in html.replace("data:image/png", "")


def test_results_of_extensions_alone_give_a_report(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with open_results(results) as file:
        file.append(*adaptive_run(0, [0.2, 0.6]).rounds)
    write_report(results, tmp_path)
    assert (
        "There are no results yet for two rows that differ only in the policy"
        in (tmp_path / "report.md").read_text()
    )


def test_the_label_of_a_row_with_many_changes_leaves_room_for_the_plot(tmp_path: Path) -> None:
    results, trial = tmp_path / "results.jsonl", Trial(STUDY["combined"].row, 0)
    with open_results(results) as file:
        file.append(*(line(trial, number, 0.1 * number) for number in (1, 2)))
    write_report(results, tmp_path)  # fails if there is no room: matplotlib warns


def test_results_of_an_uncertain_row_alone_give_a_report(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with open_results(results) as file:
        file.append(line(Trial(replace(FEDCS, uncertainty=0.1), 0), 1, 0.2))
    assert make_report(results).plots == {}


def test_the_tables_have_the_layout_of_the_paper() -> None:
    table, non_iid = paper_tables([])
    assert [cells[0] for cells in table.lines[::2]] == [
        "FedLim, 3 min",
        "FedCS, 3 min",
        "FedCS, 3 min, r = 10%",
        "FedCS, 3 min, r = 20%",
        "FedCS, 1 min",
        "FedCS, 5 min",
        "FedCS, 10 min",
    ]
    assert table.columns == [
        "CIFAR-10: minutes to 0.5",
        "CIFAR-10: minutes to 0.75",
        "CIFAR-10: accuracy",
        "Fashion-MNIST: minutes to 0.5",
        "Fashion-MNIST: minutes to 0.85",
        "Fashion-MNIST: accuracy",
    ]
    assert [list(cells) for cells in non_iid.lines] == [
        ["FedLim, 5 min", "published", "never", "never", "0.31", "never", "never", "0.46"],
        ["", "ours", *["–"] * 6],
        ["FedCS, 5 min", "published", "91.7", "213.7", "0.54", "82.4", "187.7", "0.71"],
        ["", "ours", *["–"] * 6],
    ]


def test_a_row_has_a_line_for_each_version() -> None:
    found = figures_of([run(Trial(FEDCS, 0), [0.6], version="0.1.0"), run(Trial(FEDCS, 1), [0.2, 0.6])])
    lines = [cells for cells in paper_tables(found)[0].lines if "version" in cells[1]]
    assert [cells[1:3] for cells in lines] == [
        ["ours, version 0.1.0", "3.0 (1) [1.7]"],
        ["ours, version 0.2.0", "6.0 (1) [3.3]"],
    ]


def test_extensions_are_compared_with_the_same_seed() -> None:
    fixed = [run(Trial(FEDCS, 0), [0.2, 0.6]), run(Trial(FEDCS, 1), [0.2, 0.3, 0.6])]
    extended = [adaptive_run(0, [0.2, 0.3, 0.6]), adaptive_run(1, [0.3, 0.4]), adaptive_run(2, [0.6])]
    lower, higher = compare_extensions(figures_of([*fixed, *extended]))
    assert lower.accuracy == 0.5
    assert list(map(str, lower.seeds)) == [
        "seed 0: 3.0 / 6.0 min = 0.50",
        "seed 1: not in 2.0 / 9.0 min",
    ]
    assert lower.mean_ratio == "0.50 (1) [0.90]"
    assert (higher.accuracy, higher.mean_ratio) == (0.75, "–")


def test_adaptive_rounds_are_also_counted_with_their_deadlines() -> None:
    fixed = [run(Trial(FEDCS, seed), [0.2, 0.6]) for seed in (0, 1)]
    extended = [adaptive_run(seed, [0.2, 0.3, 0.6], round_deadline_s=90.0) for seed in (0, 1)]
    lower, higher = compare_extensions(figures_of([*fixed, *extended]))
    assert lower.mean_ratio == "0.50 (2) [0.90], full deadlines: 0.75"
    assert higher.mean_ratio == "–"
    not_recorded = [extended[0], adaptive_run(1, [0.2, 0.3, 0.6])]
    (lower, _) = compare_extensions(figures_of([*fixed, *not_recorded]))
    assert lower.mean_ratio == "0.50 (2) [0.90]"


def test_comparisons_of_different_versions_are_in_different_lines() -> None:
    fixed = [run(Trial(FEDCS, 0), [0.6], version="0.1.0"), run(Trial(FEDCS, 1), [0.6])]
    extended = [adaptive_run(0, [0.6]), adaptive_run(1, [0.6])]
    lines = [item for item in compare_extensions(figures_of([*fixed, *extended])) if item.accuracy == 0.5]
    assert [(item.versions, len(item.seeds)) for item in lines] == [
        ("0.2.0; fixed FedCS: 0.1.0", 1),
        ("0.2.0", 1),
    ]


def test_the_same_version_is_preferred_if_it_reached_the_accuracy() -> None:
    old, new = (run(Trial(FEDCS, 0), [0.2, 0.6], version=version) for version in ("0.1.0", "0.2.0"))
    short = run(Trial(FEDCS, 0), [0.2])
    extended = adaptive_run(0, [0.6])
    for fixed, versions in (([old, new], "0.2.0"), ([old, short], "0.2.0; fixed FedCS: 0.1.0")):
        (first, _) = compare_extensions(figures_of([*fixed, extended]))
        assert first.versions == versions


def test_each_change_of_an_extension_is_told() -> None:
    row = replace(FEDCS, policy="optimal", setting="non-iid").with_changes(
        {
            "deadline_mode": "adaptive",
            "update_encoding": "int8",
            "model_encoding": "float16",
            "dispatch": "on_ready",
            "model": "paper-cnn-stated-size",
            "aggregation": "uniform",
            "learning_rate": 0.05,
        }
    )
    assert compared_row(row) == replace(FEDCS, setting="non-iid", round_minutes=5)
    told = list(changes_of(row))
    assert len(told) == 9
    assert told[0] == "the policy is `optimal` instead of the paper's greedy selection"
    assert told[-1] == "the field `learning_rate` of the task is `0.05`"
    assert not any(list(changes_of(paper)) for paper in PUBLISHED)


def test_the_findings_name_what_is_missing_and_what_is_later() -> None:
    uncertain = replace(FEDCS, uncertainty=0.1)
    found = figures_of(
        [
            run(Trial(FEDCS, 0), [0.2, 0.8]),
            run(Trial(FEDLIM, 0), [0.2, 0.3, 0.8]),
            run(Trial(FEDCS, 1), [0.2, 0.3, 0.8]),
            run(Trial(FEDLIM, 1), [0.2, 0.8]),
            run(Trial(FEDCS, 2), [0.8]),
            run(Trial(FEDLIM, 2), [0.2]),
            run(Trial(FEDCS, 3), [0.2]),
            run(Trial(FEDLIM, 3), [0.2]),
            run(Trial(uncertain, 0), [0.2] * 10),
        ]
    )
    done, published, fedlim = findings(found)
    assert done.startswith("2 of the paper's 18 rows")
    assert "cifar-10, iid, fedcs, 3 min, r = 10%;" in done
    assert "cifar-10, iid, fedcs, 3 min;" not in done
    assert published == (
        "Of the published times to an accuracy, 0 were reached no later, 1 later: cifar-10, iid, fedcs, "
        "3 min, r = 10%, 0.5, version 0.2.0. Open, because not all trials have run so long: 5."
    )
    assert fedlim == (
        "FedCS reached the higher accuracy earlier than FedLim in 2 pairs with the same seed, not earlier "
        "in 1: cifar-10, iid, seed 1. Open, because not all trials have run so long: 1."
    )


def test_times_no_later_than_published_are_counted() -> None:
    on_time = run(Trial(FEDCS, 0), [0.6] * 44 + [0.8])
    late = run(Trial(FEDLIM, 0), [0.2] * 20 + [0.8])
    _, published, _ = findings(figures_of([on_time, late]))
    assert "2 were reached no later, 2 later" in published


def test_no_results_no_report(tmp_path: Path) -> None:
    with pytest.raises(NoResultsError, match="no results yet"):
        write_report(tmp_path / "results.jsonl", tmp_path)


def test_the_report_in_the_documentation_is_that_of_the_results_file() -> None:
    documented = Path(__file__).parents[3] / "docs" / "results"
    report = make_report(documented / "reproduction.jsonl")
    assert (documented / "report.md").read_text() == report.markdown
    assert all((documented / name).is_file() for name in report.plots)
