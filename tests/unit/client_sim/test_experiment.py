"""Which runs an experiment has."""

import pytest

from client_sim.experiment import parse_sweep, planned_batches
from client_sim.scenario import ScenarioError, load_scenario

SMALL = load_scenario("small").changed(seed=5)


def test_without_trials_and_sweep_all_policies_run_at_the_same_time() -> None:
    ((first, second),) = planned_batches(SMALL, ["fedcs", "fedlim"], None, 1)
    assert (first.label, second.label) == ("fedcs", "fedlim")
    assert first.scenario == SMALL
    assert second.scenario == SMALL.changed(policy="fedlim")


def test_each_trial_has_its_seed_and_each_value_its_runs() -> None:
    sweep = parse_sweep("round_deadline_s=20,40.5")
    batches = list(planned_batches(SMALL, ["fedcs"], sweep, 2))
    assert [
        (run.label, run.scenario.task.round_deadline_s, run.scenario.seed, run.scenario.task.seed)
        for (run,) in batches
    ] == [
        ("fedcs, round_deadline_s=20", 20, 5, 5),
        ("fedcs, round_deadline_s=40.5", 40.5, 5, 5),
        ("fedcs, round_deadline_s=20", 20, 6, 6),
        ("fedcs, round_deadline_s=40.5", 40.5, 6, 6),
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cell.clients=10, 20", [10, 20]),
        ("task.update_encoding=int8,float16", ["int8", "float16"]),
        ("behaviour.uncertainty=0,0.5", [0, 0.5]),
        ("update_clip_factor=2,inf", [2, None]),
        ("rounds=3", [3]),
    ],
)
def test_a_sweep_changes_a_field_of_the_task_or_a_key_of_the_scenario(
    text: str, values: list[object]
) -> None:
    sweep = parse_sweep(text)
    found = []
    for (run,) in planned_batches(SMALL, ["fedcs"], sweep, 1):
        content = run.scenario.model_dump(mode="json")
        for key in sweep.path:
            content = content[key]
        found.append(content)
    assert found == values


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("round_deadline_s", "write a field and its values"),
        ("=1,2", "write a field and its values"),
        ("rounds=1,,2", "write a field and its values"),
        ("rounds=1,1", "given twice"),
        ("policy=fedcs,fedlim", "use --policy"),
        ("task.seed=1,2", "use --trials"),
        ("round_deadlin_s=1", "did you mean round_deadline_s"),
        ("cell.client=1", r"did you mean cell\.clients"),
        ("cell=1", "neither a task nor a scenario"),
    ],
)
def test_a_sweep_that_makes_no_sense(text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        parse_sweep(text)


def test_a_value_that_is_not_allowed_names_the_field() -> None:
    with pytest.raises(ScenarioError, match=r"cell\.clients: "):
        list(planned_batches(SMALL, ["fedcs"], parse_sweep("cell.clients=many"), 1))


def test_until_replaces_the_limits() -> None:
    limited = SMALL.changed(rounds=3)
    ended = limited.changed(until_minutes=2)
    assert (ended.rounds, ended.task.final_deadline_s) == (None, 120)
    both = limited.changed(until_minutes=2, rounds=4)
    assert (both.rounds, both.task.final_deadline_s) == (4, 120)
