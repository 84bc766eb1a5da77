from pathlib import Path

from client_sim.reproduction.campaign import read_campaign
from client_sim.reproduction.non_iid import LAST_MINUTES, ON_CIFAR_10, SEED, STUDY, write_study
from client_sim.reproduction.results_file import open_results
from client_sim.reproduction.rows import Trial, scenario_of
from services.domain.tasks import PartitionScheme
from tests.unit.client_sim.test_reproduction import line

DOCS = Path(__file__).parents[3] / "docs"


def record(path: Path, **accuracies: list[float]) -> None:
    """Record a run with these accuracies for each of the named rows."""
    with open_results(path) as file:
        for name, values in accuracies.items():
            row = STUDY[name.replace("_", "-")].row
            for number, accuracy in enumerate(values, start=1):
                file.append(line(Trial(row, 0), number, accuracy, task_id=name))


def test_each_row_makes_a_task_and_differs_from_the_row_it_is_compared_with() -> None:
    for study in STUDY.values():
        task = scenario_of(Trial(study.row, 0)).task
        assert task.partition_scheme is PartitionScheme.NON_IID
        assert study.compared_with is None or STUDY[study.compared_with].row != study.row
    assert len({Trial(study.row, 0).slug for study in STUDY.values()}) == len(STUDY)


def test_the_campaign_runs_all_rows_but_that_of_the_paper() -> None:
    planned = read_campaign(DOCS / "non-iid-campaign.toml")
    rows = [study.row for name, study in STUDY.items() if name != "paper"] + [ON_CIFAR_10.row]
    assert [item.trial for item in planned] == [Trial(row, SEED) for row in rows]
    assert all(item.until.accuracy is None and item.until.minutes >= LAST_MINUTES[1] for item in planned)


def test_the_report_compares_a_row_with_the_one_it_changes(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "non-iid.md"
    record(results, paper=[0.1] * 8 + [0.3] * 4, group_norm=[0.2] * 8 + [0.5, 0.62, 0.7, 0.58], encoded=[0.4])
    write_study(results, out)
    text = out.read_text()
    assert "| 8.0 | 45.0 | 50.0 | 55.0 | not in 60 | 0.700 (55 min) | 0.600 |" in text
    assert "- `group-norm` against `paper`: +0.300 in the mean accuracy." in text
    assert "| 8.0 | not in 3 | not in 3 | not in 3 | not in 3 | 0.400 (3 min) | – |" in text
    assert "`encoded` against" not in text
    assert "as `encoded`, and `calibrated_loss` | not run yet |" in text


def test_the_report_has_the_run_with_cifar_10(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "non-iid.md"
    write_study(results, out)
    assert "| `combined` | as `combined`, with CIFAR-10 | not run yet | – | – | – | – |" in out.read_text()
    with open_results(results) as file:
        for number, accuracy in enumerate([0.2, 0.4, 0.3], start=1):
            file.append(line(Trial(ON_CIFAR_10.row, SEED), number, accuracy))
    write_study(results, out)
    row = "| `combined` | as `combined`, with CIFAR-10 | 8.0 | 6.0 | not in 9 | 0.400 (6 min) | 0.2.0 |"
    assert row in out.read_text()


def test_a_change_that_does_not_help_is_reported(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "non-iid.md"
    record(results, paper=[0.5] * 12, group_norm=[0.4] * 12)
    write_study(results, out)
    assert "-0.100 in the mean accuracy; it does not help here." in out.read_text()


def test_rows_of_different_versions_are_marked(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "non-iid.md"
    record(results, group_norm=[0.5] * 12)
    with open_results(results) as file:
        for number in range(1, 13):
            file.append(line(Trial(STUDY["paper"].row, SEED), number, 0.25, version="0.1.0"))
    write_study(results, out)
    text = out.read_text()
    assert "+0.250 in the mean accuracy (version 0.2.0 against 0.1.0)." in text
    assert "| 0.250 | 0.1.0 |" in text


def test_without_comparable_rows_the_report_says_so(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "non-iid.md"
    record(results, paper=[0.5] * 12)
    write_study(results, out)
    assert "There are no results yet for two rows" in out.read_text()


def test_the_documented_report_is_that_of_the_recorded_runs(tmp_path: Path) -> None:
    write_study(DOCS / "results" / "non-iid.jsonl", tmp_path / "non-iid.md")
    assert (DOCS / "non-iid.md").read_text() == (tmp_path / "non-iid.md").read_text()
