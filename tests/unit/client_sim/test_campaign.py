from pathlib import Path

import pytest
from click.testing import CliRunner

from client_sim.commands import reproduce
from client_sim.reproduction.campaign import CampaignFileError, TrialPlan, TrialQueue, read_campaign
from client_sim.reproduction.results_file import CURRENT_VERSION, open_results
from client_sim.reproduction.rows import PUBLISHED, Trial
from client_sim.reproduction.trial import PlannedTrial, parse_until
from tests.unit.client_sim.test_reproduction import FEDCS, FEDLIM, line

DOCUMENTED = Path(__file__).parents[3] / "docs" / "campaign.toml"
ENTRY = """
[[trials]]
dataset = ["cifar-10"]
setting = ["iid"]
round_minutes = [3]
uncertainty = [0.0]
"""


def campaign(folder: Path, text: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(text)
    return path


def test_trials_run_in_the_order_of_the_file(tmp_path: Path) -> None:
    first = ENTRY + 'seeds = [1, 0]\nuntil = ["0.75"]\n'
    second = ENTRY + 'policy = ["fedcs"]\ntask = { deadline_mode = "adaptive" }\nseeds = [0]\n'
    planned = read_campaign(campaign(tmp_path, first + second))
    adaptive = FEDCS.with_changes({"deadline_mode": "adaptive"})
    assert [item.trial for item in planned] == [
        Trial(FEDLIM, 1),
        Trial(FEDCS, 1),
        Trial(FEDLIM, 0),
        Trial(FEDCS, 0),
        Trial(adaptive, 0),
    ]
    assert [item.until.accuracy for item in planned] == [0.75] * 4 + [None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trials: Field required"),
        ("trials = []", "trials"),
        ("[[trials]", "not TOML"),
        (ENTRY, "trials.0.seeds: Field required"),
        (ENTRY + "seeds = []", "trials.0.seeds"),
        (ENTRY + "seeds = [-1]", "trials.0.seeds.0"),
        (ENTRY + "seeds = [0]\nseed = 1", "trials.0.seed: there is no such key"),
        (
            ENTRY + 'seeds = [0]\npolicy = ["fedlim"]\n[[trials]]\ndataset = ["mnist"]\nseeds = [0]',
            "trials.1: no row",
        ),
        (ENTRY + 'seeds = [0]\nuntil = ["soon"]', "trials.0: --until soon"),
        (ENTRY + "seeds = [0]\ntask = { policy = 'fl' }", "trials.0: policy"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match=message):
        read_campaign(campaign(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignFileError, match="No such file"):
        read_campaign(tmp_path / "campaign.toml")


def test_the_documented_campaign_begins_with_all_rows_of_the_paper() -> None:
    planned = read_campaign(DOCUMENTED)
    assert {item.trial for item in planned[:18]} == {Trial(row, 0) for row in PUBLISHED}
    for item in planned[:18]:
        assert item.until.accuracy == max(PUBLISHED[item.trial.row].minutes_to)


def test_trials_with_settings_of_another_version_are_left_out() -> None:
    until = parse_until([])
    other = Trial(FEDCS.with_changes({"no_such_field": 1}), 0)
    possible, refused = TrialPlan(
        [PlannedTrial(other, until), PlannedTrial(Trial(FEDCS, 0), until)]
    ).runnable()
    assert [item.trial for item in possible] == [Trial(FEDCS, 0)]
    assert refused == [f"{other}: no_such_field: there is no such key"]


def test_a_trial_is_not_run_twice_at_the_same_time() -> None:
    to_accuracy, to_the_end = parse_until(["0.5"]), parse_until([])
    planned = [
        PlannedTrial(Trial(FEDCS, 0), to_accuracy),
        PlannedTrial(Trial(FEDCS, 0), to_the_end),
        PlannedTrial(Trial(FEDCS, 1), to_accuracy),
    ]
    queue = TrialQueue(list(planned))
    assert [queue.take(), queue.take(), queue.take()] == [planned[0], planned[2], None]
    queue.finish(planned[0])
    assert [queue.take(), queue.take()] == [planned[1], None]


def test_the_list_has_the_trials_of_the_campaign(tmp_path: Path) -> None:
    path = campaign(tmp_path, ENTRY + "seeds = [3]\n" + ENTRY + "seeds = [4]\ntask = { no_such_field = 1 }")
    results = ["--results", str(tmp_path / "results.jsonl")]
    listed = CliRunner().invoke(reproduce, ["--campaign", str(path), "--list", *results])
    assert listed.exit_code == 0, listed.output
    assert "2 of 2 left" in listed.output
    assert "This version cannot run 2 trials" in listed.output


@pytest.mark.parametrize(
    ("version", "listed"), [(CURRENT_VERSION, "All trials are done"), ("0.1.0", "1 of 1")]
)
def test_only_runs_of_this_version_count(version: str, listed: str, tmp_path: Path) -> None:
    entry = ENTRY + 'policy = ["fedcs"]\nseeds = [0]\nuntil = ["0.7"]\n'
    path, results = campaign(tmp_path, entry), tmp_path / "results.jsonl"
    with open_results(results) as file:
        for number in range(1, 25):
            file.append(line(Trial(FEDCS, 0), number, 0.5, task_id="old", version="0.1.0"))
        for number in range(1, 21):
            accuracy = 0.7 if number == 20 else 0.5
            file.append(line(Trial(FEDCS, 0), number, accuracy, task_id="new", version=version))
    options = ["--campaign", str(path), "--list", "--results", str(results)]
    assert listed in CliRunner().invoke(reproduce, options).output


def test_options_that_select_rows_are_refused_with_a_campaign(tmp_path: Path) -> None:
    path = campaign(tmp_path, ENTRY + "seeds = [0]")
    refused = CliRunner().invoke(reproduce, ["--campaign", str(path), "--list", "--trials", "2"])
    assert refused.exit_code == 2
    assert "--trials cannot be used with --campaign" in refused.output
