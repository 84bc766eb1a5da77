"""Updates that would spoil the global model, sent by devices to a real service with a real worker."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.integration.cell import assert_problem, content_digest, open_round
from tests.integration.rounds_setup import events_until, get_task, slot_of
from tests.running_stack import Stack, running_stack

Tensors = Mapping[str, npt.NDArray[Any]]

SHAPES = {"layer.weight": (300, 40), "layer.bias": (300,), "norm.running_var": (7,)}
SAMPLES = [100, 300, 400]
"""Of the honest devices: an average weighted so is exact in binary."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1") as running:
        yield running


def _tensors(seed: int) -> Tensors:
    """Numbers with few binary digits, so that sums of a few of them are exact."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.integers(-64, 65, shape) / 64).astype(np.float32) + np.float32("var" in name)
        for name, shape in SHAPES.items()
    }


def _cell(stack: Stack, samples: list[int], **terms: object) -> tuple[HostedCell, dict[str, Any]]:
    """A cell whose task has a small model of the operator's, and a round of all its devices."""
    cell = hosted_cell(stack.service, samples)
    cell.start_task(dataset=None, **terms)
    model = save(dict(_tensors(0)))
    path = f"/tasks/{cell.task_id}/models/0"
    assert stack.service.put(path, content=model, headers=content_digest(model)).status_code == 200
    opened = open_round(stack.service, cell.task_id)
    assert opened["selected"] == len(samples)
    return cell, opened


def _slot(opened: dict[str, Any], client_id: str) -> dict[str, Any]:
    (slot,) = [item for item in opened["schedule"]["slots"] if item["client_id"] == client_id]
    return dict(slot)


def _send(cell: HostedCell, opened: dict[str, Any], client_id: str, tensors: Tensors) -> None:
    response = cell.send(opened, _slot(opened, client_id), save(dict(tensors)))
    assert response.status_code == 201, response.text


def _scaled(tensors: Tensors, factor: float, only: str = "") -> Tensors:
    return {name: item * np.float32(factor if only in name else 1) for name, item in tensors.items()}


def _distance(item: Tensors, other: Tensors, *names: str) -> float:
    return float(np.sqrt(sum(((item[name].astype(float) - other[name]) ** 2).sum() for name in names)))


def test_what_is_not_finite_or_has_other_tensors_is_refused_as_it_comes(stack: Stack) -> None:
    cell, opened = _cell(stack, [100, 100])
    good, bad = cell.keys
    one_nan = {name: item.copy() for name, item in _tensors(1).items()}
    one_nan["layer.weight"][299, 39] = np.nan
    other_keys = {f"module.{name}": item for name, item in _tensors(1).items()}
    for tensors, saying in ((one_nan, "not all numbers are finite"), (other_keys, "layer.bias")):
        refused = cell.send(opened, _slot(opened, bad), save(tensors))
        assert saying in assert_problem(refused, 422, "BAD_TENSORS")["detail"]
    _send(cell, opened, good, _tensors(2))
    assert stack.service.post(f"/rounds/{opened['round_id']}/close").status_code == 200
    over = cell.round_over(opened["round_id"])
    assert (over["state"], over["received"]) == ("aggregated", 1)
    slot = slot_of(stack.service, opened["round_id"], bad)
    assert (slot["outcome"], slot["rejections"]) == ("rejected", 2)
    assert _same(load(cell.model(1)), _tensors(2))


@pytest.mark.parametrize(
    ("factor", "only", "what"),
    [(1e3, "weight", "parameters"), (1e38, "", "parameters"), (1e6, "running_var", "running statistics")],
)
def test_an_outlier_is_discarded(stack: Stack, factor: float, only: str, what: str) -> None:
    cell, opened = _cell(stack, [*SAMPLES, 5000])
    *honest, poisoner = cell.keys
    updates = [_tensors(seed) for seed in (1, 2, 3)]
    for client_id, tensors in zip(honest, updates, strict=True):
        _send(cell, opened, client_id, tensors)
    _send(cell, opened, poisoner, _scaled(_tensors(4), factor, only))
    over = cell.round_over(opened["round_id"])
    assert (over["state"], over["received"]) == ("aggregated", 3)

    slot = slot_of(stack.service, opened["round_id"], poisoner)
    assert (slot["outcome"], slot["rejections"]) == ("rejected", 1)
    assert f"the update changes the {what} by " in slot["last_rejection"]
    assert {slot_of(stack.service, opened["round_id"], item)["outcome"] for item in honest} == {"received"}
    told = events_until(stack.service, "round.aggregated", round_id=opened["round_id"])
    (event,) = [event for event in told if event["kind"] == "update.rejected"]
    assert (event["client_id"], event["data"]["reason"]) == (poisoner, slot["last_rejection"])

    first, two, three = updates
    average = {name: (first[name] + 3 * two[name] + 4 * three[name]) / 8 for name in SHAPES}
    assert _same(load(cell.model(1)), average)
    (metrics,) = stack.service.get(f"/tasks/{cell.task_id}/metrics").json()["rounds"]
    assert (metrics["received"], metrics["model_version"], metrics["accuracy"]) == (3, 1, None)


def _same(ours: Tensors, expected: Tensors) -> bool:
    """Bit for bit."""
    assert ours.keys() == expected.keys()
    return all(ours[name].tobytes() == expected[name].astype(np.float32).tobytes() for name in expected)


@pytest.mark.parametrize("devices", [1, 3])
def test_a_round_of_nothing_but_poison_fails_and_the_model_stays(stack: Stack, devices: int) -> None:
    cell, opened = _cell(stack, SAMPLES[:devices])
    for seed, client_id in enumerate(cell.keys, 1):
        _send(cell, opened, client_id, _scaled(_tensors(seed), 1e30))
    over = cell.round_over(opened["round_id"])
    assert (over["state"], over["outcome"], over["received"]) == ("failed", "TOO_FEW_UPDATES", 0)
    assert {slot["outcome"] for slot in over["schedule"]["slots"]} == {"rejected"}
    task = get_task(stack.service, cell.task_id)
    assert (task["state"], task["model_version"]) == ("running", 0)
    following = open_round(stack.service, cell.task_id)
    assert (following["number"], following["model_version"]) == (2, 0)


def test_too_few_good_updates_make_no_model_either(stack: Stack) -> None:
    cell, opened = _cell(stack, [*SAMPLES, 400], min_updates=4)
    for seed, client_id in enumerate(cell.keys, 1):
        _send(cell, opened, client_id, _scaled(_tensors(seed), 1e6 if seed == 2 else 1))
    over = cell.round_over(opened["round_id"])
    assert (over["state"], over["outcome"], over["received"]) == ("failed", "TOO_FEW_UPDATES", 3)
    assert get_task(stack.service, cell.task_id)["model_version"] == 0
    told = events_until(stack.service, "round.failed", round_id=opened["round_id"])
    assert "model.created" not in {event["kind"] for event in told}


def test_a_long_step_is_clipped_and_its_slot_says_so(stack: Stack) -> None:
    """Fifteen times a step against the others: no outlier, and shortened to twice the median."""
    cell, opened = _cell(stack, [*SAMPLES, 5000])
    before = _tensors(0)
    *honest, poisoner = cell.keys
    for seed, client_id in enumerate(honest, 1):
        _send(cell, opened, client_id, _tensors(seed))
    against = {
        name: before[name] - 15 * (item - before[name]) if "layer" in name else item
        for name, item in _tensors(4).items()
    }
    _send(cell, opened, poisoner, against)
    assert cell.round_over(opened["round_id"])["received"] == 4
    slots = {key: slot_of(stack.service, opened["round_id"], key) for key in cell.keys}
    norms = sorted(slots[item]["update_norm"] for item in honest)
    assert [slots[item]["update_scale"] for item in honest] == [1.0] * 3
    assert slots[poisoner]["update_norm"] > 10 * norms[1]
    clipped = slots[poisoner]["update_norm"] * slots[poisoner]["update_scale"]
    assert 2 * norms[0] <= clipped <= 2 * norms[2]
    assert slots[poisoner]["statistics_scale"] == 1.0
    assert [slots[key]["weight"] for key in cell.keys] == [
        *SAMPLES,
        300,
    ]  # of 5,000: the median, because its step is clipped
    following = open_round(stack.service, cell.task_id)
    assert {slot["weight"] for slot in following["schedule"]["slots"]} == {None}


def test_no_device_moves_the_model_further_than_the_task_allows(stack: Stack) -> None:
    """The parameters, that is; here each device would by more than 50."""
    parameters = ("layer.weight", "layer.bias")
    cell, opened = _cell(stack, SAMPLES, max_update_norm=0.5)
    before = _tensors(0)
    for seed, client_id in enumerate(cell.keys, 1):
        assert _distance(_tensors(seed), before, *parameters) > 50
        _send(cell, opened, client_id, _tensors(seed))
    assert cell.round_over(opened["round_id"])["received"] == 3
    assert 0.1 < _distance(load(cell.model(1)), before, *parameters) <= 0.5 * (1 + 1e-5)

    alone, opened = _cell(stack, [100], max_update_norm=0.5)
    _send(alone, opened, next(iter(alone.keys)), _tensors(1))
    assert alone.round_over(opened["round_id"])["received"] == 1
    moved = load(alone.model(1))
    assert _distance(moved, before, *parameters) == pytest.approx(0.5, rel=1e-5)
    step = _tensors(1)["layer.bias"] - before["layer.bias"]
    share = 0.5 / _distance(_tensors(1), before, *parameters)
    assert np.allclose(moved["layer.bias"], before["layer.bias"] + share * step, rtol=0, atol=1e-6)
