import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from client_sim.scenario import (
    Scenario,
    ScenarioError,
    load_scenario,
    presets,
    scaled_behaviour,
    scaled_reports,
    scaled_task,
)
from services.contract.tasks import TaskRequest
from services.domain.radio import PAPER_MODEL_SIZE_BYTES, Cell
from services.domain.tasks import Clock

SHORTEST = 'name = "mine"\nrounds = 3\n[task]\nround_deadline_s = 60\n'


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_start_with_a_comment(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == scenario.task.name == name
    assert scenario.task.clock is (Clock.WALL if name == "two-tasks" else Clock.SIMULATED)
    source = Path(__file__).parents[3] / "client_sim" / "scenarios" / f"{name}.toml"
    assert source.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(
    ("name", "dataset"), [("paper-cifar-10", "cifar10"), ("paper-fashion-mnist", "fashion-mnist")]
)
def test_paper_presets_have_the_papers_numbers(name: str, dataset: str) -> None:
    scenario = load_scenario(name)
    assert scenario.cell.cell() == Cell()
    assert (scenario.cell.clients, scenario.task.request_fraction) == (1000, 0.1)
    assert (scenario.task.round_deadline_s, scenario.task.final_deadline_s) == (180, 400 * 60)
    assert scenario.task.model_size_bytes == PAPER_MODEL_SIZE_BYTES[dataset]


def test_the_shortest_scenario_is_the_papers_cell(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, SHORTEST))
    assert scenario.cell.cell() == Cell()
    assert scenario.cell.clients == 1000
    assert (scenario.behaviour.uncertainty, scenario.behaviour.dropout) == (0, 0)
    assert scenario.rounds == 3
    assert scenario.task == TaskRequest(name="mine", round_deadline_s=60, seed=0)


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = """
        name = "mine"
        seed = 5
        [cell]
        clients = 7.0
        radius_m = 500
        placement = "area"
        noise_figure_db = 3
        shadow_fading_db = 4
        data_samples = [10, 20]
        compute_samples_per_s = [1.5, 2]
        [behaviour]
        uncertainty = 0.2
        dropout = 0.1
        [task]
        name = "theirs"
        policy = "fedlim"
        round_deadline_s = 60
        final_deadline_s = 600
        labels = {vehicle = "bus"}
        [synthetic_update]
        model_bytes = 2e3
    """
    scenario = load_scenario(written(tmp_path, text))
    assert (scenario.rounds, scenario.task.seed, scenario.task.name) == (None, 5, "theirs")
    assert scenario.task.labels == {"vehicle": "bus"}
    assert scenario.synthetic_update.model_bytes == 2000
    assert scenario.behaviour.dropout == 0.1
    cell = scenario.cell.cell()
    assert (cell.radius_m, cell.placement, cell.data_samples) == (500, "area", (10, 20))
    assert (cell.radio.noise_figure_db, cell.radio.shadow_fading_db) == (3, 4)
    assert cell.compute_samples_per_s == (1.5, 2)
    with pytest.raises(ValidationError):
        scenario.seed = 6


def test_the_table_for_synthetic_updates_has_an_old_name(tmp_path: Path) -> None:
    old = SHORTEST + "[stand_in]\nmodel_bytes = 2000\n"
    assert load_scenario(written(tmp_path, old)).synthetic_update.model_bytes == 2000
    with pytest.raises(ScenarioError, match="stand_in: there is no such key"):
        load_scenario(written(tmp_path, old + "[synthetic_update]\nmodel_bytes = 3000\n"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name = "mine"\nrounds =\n', r"not TOML: Invalid value \(at line 2, column 9\)"),
        ("[[task]]\n[task]\n", r"not TOML: .*line 2"),
        ("x = " + 5000 * "[", "not TOML: "),
        ("rounds = 1\n[task]\nround_deadline_s = 60\n", "name: Field required"),
        ('name = "mine"\nrounds = 1\n', "task: Field required"),
        ('name = "mine"\ntask = 1\n', "task: Input should be an object"),
        ("colour = 1\n" + SHORTEST, "colour: there is no such key"),
        ("seed = -1\n" + SHORTEST, r"seed: .* greater than or equal to 0 \(and 1 more\)"),
        (SHORTEST.replace("3", "0"), "rounds: .* greater than or equal to 1"),
        (SHORTEST + "colour = 1\n", "task.colour: there is no such key"),
        (SHORTEST + 'policy = "best"\n', "task.policy: .*unknown policy; choose one of fedcs"),
        (SHORTEST + "aggregation_s = 60\n", "task.round_deadline_s: .*leave no time"),
        (SHORTEST + "target_accuracy = 0.5\n", "task.target_accuracy: Without a dataset"),
        (SHORTEST + "[cell]\nclients = 0\n", "cell.clients: .*greater than or equal to 1"),
        (SHORTEST + "[cell]\nclients = 1_000_001\n", "cell.clients: .*less than or equal to 1000000"),
        (SHORTEST + '[cell]\nclients = "ten"\n', "cell.clients: Input should be a valid integer"),
        (SHORTEST + "[cell]\nclients = 2026-01-01\n", "cell.clients: Input should be a valid integer"),
        (SHORTEST + "[cell]\nradius_m = 9.9\n", "cell.radius_m: .*greater than or equal to 10"),
        (SHORTEST + "[cell]\nradius_m = inf\n", "cell.radius_m: "),
        (SHORTEST + '[cell]\nplacement = "ring"\n', "cell.placement: .*'distance' or 'area'"),
        (SHORTEST + "[cell]\nnoise_figure_db = -1\n", "cell.noise_figure_db: "),
        (SHORTEST + "[cell]\nshadow_fading_db = nan\n", "cell.shadow_fading_db: "),
        (
            SHORTEST + "[cell]\ndata_samples = [9, 8]\n",
            "cell.data_samples: The first value is the lower limit",
        ),
        (SHORTEST + "[cell]\ndata_samples = [0, 8]\n", "cell.data_samples.0: .*greater than or equal to 1"),
        (SHORTEST + "[cell]\ndata_samples = [9]\n", "cell.data_samples.1: Field required"),
        (SHORTEST + "[cell]\ncompute_samples_per_s = [2, 1]\n", "cell.compute_samples_per_s: The first"),
        (SHORTEST + "[cell]\ncompute_samples_per_s = [0, 1]\n", "cell.compute_samples_per_s.0: "),
        (SHORTEST + "[behaviour]\nuncertainty = 1.1\n", "behaviour.uncertainty: .*less than or equal to 1"),
        (SHORTEST + "[behaviour]\nuncertainty = nan\n", "behaviour.uncertainty: "),
        (SHORTEST + "[behaviour]\ndropout = -0.1\n", "behaviour.dropout: .*greater than or equal to 0"),
        (SHORTEST + "[behaviour]\nwhims = 1\n", "behaviour.whims: there is no such key"),
        (SHORTEST + "[behaviour]\nleaving = 2\n", "behaviour.leaving: .*less than or equal to 1"),
        (SHORTEST + "[behaviour]\naway_s = [0, 1]\n", "behaviour.away_s.0: .*greater than 0"),
        (SHORTEST + "[behaviour]\naway_s = [2, 1]\n", "behaviour.away_s: The first value"),
        (SHORTEST + "[traces]\nfiles = [1]\n", "traces.files.0: Input should be a valid string"),
        (SHORTEST + "[traces]\nreport_mean_s = 0\n", "traces.report_mean_s: .*greater than or equal to 1"),
        (SHORTEST + "[traces]\noffset_s = 0\n", "traces.offset_s: there is no such key"),
        (SHORTEST + "[traces]\n[mobility]\n", "traces and mobility exclude each other"),
        (SHORTEST + "[mobility]\nspeed_m_per_s = [0, 1]\n", "mobility.speed_m_per_s.0: "),
        (SHORTEST + "[mobility]\nspeed_m_per_s = [2, 1]\n", "mobility.speed_m_per_s: The first value"),
        (SHORTEST + "[mobility]\npause_s = [-1, 1]\n", "mobility.pause_s.0: "),
        (SHORTEST + "[mobility]\nshadow_correlation_m = 0\n", "mobility.shadow_correlation_m: "),
        (
            SHORTEST + '[[cells]]\ncell_id = "a"\n[[cells]]\ncell_id = "a"\n',
            "cells.1.cell_id: The cell is named twice",
        ),
        (
            SHORTEST + '[cell]\nclients = 1\n[[cells]]\ncell_id = "a"\n[[cells]]\ncell_id = "b"\n',
            "cells: There are 2 cells, but only 1 clients",
        ),
        (
            SHORTEST + 'cells = ["a", "b"]\n[[cells]]\ncell_id = "a"\n',
            r"task.cells: The cell b is not in \[\[cells\]\], so it has no devices",
        ),
        (SHORTEST + '[[cells]]\ncell_id = "a b"\n', "cells.0.cell_id: "),
        (SHORTEST + '[[cells]]\ncell_id = "a"\nresource_blocks = 0\n', "cells.0.resource_blocks: "),
        (SHORTEST + "[synthetic_update]\nmodel_bytes = 1023\n", "synthetic_update.model_bytes: .*1024"),
        (SHORTEST + "[synthetic_update]\nmodel = 1\n", "synthetic_update.model: there is no such key"),
        (SHORTEST + "[synthetic_update]\nmodel_bytes = 2_000_000_000\n", "synthetic_update.*less than"),
    ],
)
def test_a_bad_scenario_is_refused_in_a_line(text: str, complaint: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ScenarioError) as refusal:
        load_scenario(file)
    assert re.match(f"{re.escape(file)}: {complaint}", str(refusal.value))
    assert "\n" not in str(refusal.value)


def test_what_is_no_scenario_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match=r"no scenario 'big'; choose mobile, .*, two-tasks, unreliable, or"
    ):
        load_scenario("big")
    with pytest.raises(ScenarioError, match="no scenario ''"):
        load_scenario("")
    with pytest.raises(ScenarioError, match=r"big\.toml: No such file"):
        load_scenario("big.toml")
    with pytest.raises(ScenarioError, match="Is a directory"):
        load_scenario(str(tmp_path))
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ScenarioError, match="picture: not a text file"):
        load_scenario(str(tmp_path / "picture"))


def test_a_file_is_read_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("\ufeff" + SHORTEST, encoding="utf-8")
    assert load_scenario("mine").name == "mine"


def test_a_variation_has_its_policy_and_seed_everywhere() -> None:
    scenario = load_scenario("small")
    changed = scenario.changed(policy="fedlim", seed=9)
    assert (changed.task.policy, changed.seed, changed.task.seed) == ("fedlim", 9, 9)
    assert changed.changed(policy="fedcs", seed=0) == scenario == scenario.changed()
    with pytest.raises(ScenarioError, match=r"^task\.policy: .*unknown policy"):
        scenario.changed(policy="best")
    with pytest.raises(ScenarioError, match=r"^cell\.clients: "):
        scenario.changed(clients=0)


def small_scenario(**task: object) -> Scenario:
    return Scenario(name="s", rounds=1, task=TaskRequest.model_validate({"round_deadline_s": 180.0, **task}))


def test_on_a_faster_clock_deadlines_come_sooner() -> None:
    times: dict[str, object] = {
        "final_deadline_s": 24000.0,
        "selection_s": 2.0,
        "aggregation_s": 4.0,
        "report_window_s": 10.0,
        "clock": "wall",
    }
    task = small_scenario(**times).task
    faster = scaled_task(task, 20)
    assert (faster.round_deadline_s, faster.final_deadline_s) == (9, 1200)
    assert (faster.selection_s, faster.aggregation_s, faster.report_window_s) == (0.1, 0.2, 0.5)
    assert (faster.slot_grace_s, faster.report_max_age_s) == (task.slot_grace_s, task.report_max_age_s)
    assert scaled_task(small_scenario().task, 20).final_deadline_s is None
    assert scaled_task(task, 1) == task


def test_on_a_faster_clock_devices_are_faster() -> None:
    reports = Cell().draw_reports(10, np.random.default_rng(0))
    faster = scaled_reports(reports, 20)
    assert faster.throughput_bps.tolist() == (20 * reports.throughput_bps).tolist()
    assert faster.compute_samples_per_s.tolist() == (20 * reports.compute_samples_per_s).tolist()
    assert faster.data_samples.tolist() == reports.data_samples.tolist()


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("inf"), float("nan")])
def test_time_scales_that_mean_nothing(time_scale: float) -> None:
    with pytest.raises(ScenarioError, match="must be above 0"):
        scaled_task(small_scenario().task, time_scale)
    with pytest.raises(ScenarioError, match="must be above 0"):
        scaled_reports(Cell().draw_reports(1, np.random.default_rng(0)), time_scale)


def test_a_clock_too_slow_for_the_deadline() -> None:
    with pytest.raises(ScenarioError, match=r"with a time scale of 1e-08, round_deadline_s: .*1000000000"):
        scaled_task(small_scenario().task, 1e-8)


def test_a_run_without_an_end_is_refused() -> None:
    endless = Scenario(name="s", task=TaskRequest(round_deadline_s=180.0))
    with pytest.raises(ScenarioError, match="rounds: required if the task has no final_deadline_s"):
        endless.require_limit()
    endless.changed(rounds=1).require_limit()


def test_traces_are_found_beside_the_scenario_or_named_later(tmp_path: Path) -> None:
    text = SHORTEST + '[traces]\nfiles = ["a.up", "/b.csv"]\nphones = "phones.json"\n'
    traces = load_scenario(written(tmp_path, text)).traces
    assert traces is not None
    assert traces.paths() == (tmp_path / "a.up", Path("/b.csv"))
    assert traces.phones == str(tmp_path / "phones.json")
    preset = load_scenario("trace-lte")
    assert preset.traces is not None
    with pytest.raises(ScenarioError, match=r"traces\.files: required; .* --traces"):
        preset.traces.paths()
    named = preset.changed(traces=["here.up"]).traces
    assert named is not None
    assert (named.paths(), named.report_mean_s) == ((Path("here.up"),), preset.traces.report_mean_s)
    added = load_scenario("small").changed(traces=["here.up"]).traces
    assert added is not None
    with pytest.raises(ScenarioError, match="exclude each other"):
        load_scenario("mobile").changed(traces=["here.up"])


def test_on_a_faster_clock_devices_are_back_sooner() -> None:
    behaviour = load_scenario("unreliable").behaviour
    assert scaled_behaviour(behaviour, 20).away_s == (0.5, 3)
    assert scaled_behaviour(behaviour, 20).leaving == behaviour.leaving
