from dataclasses import replace
from pathlib import Path

import pytest

from client_sim.reproduction.report import NoResultsError, write_report
from client_sim.reproduction.results_file import appending_to
from client_sim.reproduction.rows import Trial
from tests.unit.client_sim.test_reproduction import FEDCS, FEDLIM, line


def test_the_report_has_our_figures_beside_the_published_ones(tmp_path: Path) -> None:
    results, out = tmp_path / "results.jsonl", tmp_path / "report"
    uncertain = replace(FEDCS, uncertainty=0.1)
    with appending_to(results) as file:
        for row, counts in ((FEDCS, 8), (FEDLIM, 4), (uncertain, 8)):
            for seed in (0, 1):
                for number, accuracy in enumerate((0.2, 0.4, 0.6), start=1):
                    trial = Trial(row, seed)
                    file.append(line(trial, number, accuracy, task_id=trial.slug, received=counts))
    written = write_report(results, out)
    assert all(path.stat().st_size > 100 for path in written)
    text = (out / "report.md").read_text()
    assert (
        "| fedcs, 3 min | 2 | 9 min | 8.00 ± 0.00 (paper 7.7) | 0.0% | 9.0 ± 0.0 (2) [5.0] | 25.8 |" in text
    )
    assert "| fedcs, 3 min, r = 10% | 2 |" in text
    assert "not in 9 (2) | 209.2 |" in text
    assert "FedCS takes in 2.00 times FedLim's clients" in text
    assert "16.8 min earlier than the paper's 25.8" in text
    html = (out / "report.html").read_text()
    assert html.count("data:image/png;base64,") == 3
    assert "<table>" in html
    assert ".png" not in html.replace("data:image/png", "")


def test_no_results_no_report(tmp_path: Path) -> None:
    with pytest.raises(NoResultsError, match="no results yet"):
        write_report(tmp_path / "results.jsonl", tmp_path)


def test_the_report_in_the_documentation_is_that_of_the_results_file(tmp_path: Path) -> None:
    documented = Path(__file__).parents[3] / "docs" / "results"
    write_report(documented / "reproduction.jsonl", tmp_path)
    assert (documented / "report.md").read_text() == (tmp_path / "report.md").read_text()
