import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.aggregators import AGGREGATORS
from services.aggregators.aggregation import Aggregated, Aggregator, ReceivedUpdate, State, aggregate_updates
from services.aggregators.uniform import UniformAverage
from services.aggregators.updates import ModelReader, RoundUpdates
from services.aggregators.weighted import WeightedAverage
from services.domain.clipping import ClipTerms
from services.tensors.blocks import ModelBuffer
from tests.unit.aggregators.model_files import (
    COUNTER,
    ModelFiles,
    average,
    loaded,
    small_model,
    write_in_order,
)
from tests.unit.learning.digests import digest


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, small_model())


def tensors_of(aggregated: Aggregated) -> dict[str, Tensor]:
    return loaded(aggregated.model)


def updates_near(model: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [
        {
            name: tensor + torch.randn(tensor.shape, generator=generator) / 10
            if tensor.is_floating_point()
            else tensor + place
            for name, tensor in model.items()
        }
        for place in range(count)
    ]


def given_of(files: ModelFiles, count: int) -> list[ReceivedUpdate]:
    updates = updates_near(files.tensors, count)
    return [files.update(f"c{place}", update, 10 + 7 * place) for place, update in enumerate(updates)]


@pytest.mark.parametrize("kind", [WeightedAverage, UniformAverage])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_model_becomes_the_average_of_the_updates(
    files: ModelFiles, kind: type[Aggregator], count: int
) -> None:
    received = given_of(files, count)
    updates = updates_near(files.tensors, count)
    weights = [given.data_samples if kind is WeightedAverage else 1 for given in received]
    aggregated = aggregate_updates(files.model, received, kind())
    assert aggregated.record.outliers == {}
    tensors = tensors_of(aggregated)
    assert set(tensors) == set(files.tensors)
    for name, tensor in tensors.items():
        assert (tensor.dtype, tensor.shape) == (files.tensors[name].dtype, files.tensors[name].shape)
        if name != COUNTER:
            expected = average([update[name] for update in updates], weights)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_average_is_right_for_any_shapes_and_weights(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4))
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    model = {
        f"t{place}": torch.tensor(rng.uniform(1, 2, shape)).float() for place, shape in enumerate(shapes)
    }
    with tempfile.TemporaryDirectory() as folder:
        files = ModelFiles(Path(folder), model)
        updates = [
            {
                name: tensor + torch.tensor(rng.uniform(0.5, 1, tensor.shape)).float()  # none stands out
                for name, tensor in model.items()
            }
            for _ in counts
        ]
        received = [files.update(str(place), update, counts[place]) for place, update in enumerate(updates)]
        aggregated = aggregate_updates(files.model, received, WeightedAverage(weight_cap_factor=None))
        for name, tensor in tensors_of(aggregated).items():
            expected = average([update[name] for update in updates], counts)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=2e-6)


def test_the_result_is_the_same_each_time_and_the_files_too(files: ModelFiles) -> None:
    received = given_of(files, 5)
    paths = [files.model, *(given.path for given in received)]
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    first = digest(tensors_of(aggregate_updates(files.model, received, WeightedAverage())))
    assert digest(tensors_of(aggregate_updates(files.model, received, WeightedAverage()))) == first
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] == before


@dataclass
class Last:
    """Takes the last update, and tells how often it ran."""

    summary: ClassVar[str] = "The last update."
    takes_sparse: ClassVar[bool] = True
    averages_steps: ClassVar[bool] = False
    min_updates: ClassVar[int] = 1
    runs: int = 0

    def weights(self, data_samples: Sequence[int]) -> Sequence[int]:
        assert data_samples == [24, 17, 10]
        return [3, 2, 1]

    def aggregate(
        self, current_model: ModelReader, updates: RoundUpdates, state: State | None
    ) -> tuple[ModelBuffer, State | None]:
        self.runs += 1
        assert [update.weight for update in updates] == [3, 2, 1]
        model = ModelBuffer(current_model.layout)
        *_, last = updates
        for block in updates.blocks():
            model.write(block, last.read(block))
        return model, {"runs": np.array((0 if state is None else state["runs"]) + 1)}


def test_updates_come_in_the_order_given_with_their_weights(files: ModelFiles) -> None:
    aggregated = aggregate_updates(files.model, given_of(files, 3)[::-1], Last())
    assert digest(tensors_of(aggregated)) == digest(updates_near(files.tensors, 3)[0])


def test_an_aggregator_that_reads_little_is_measured_in_full(files: ModelFiles) -> None:
    received = given_of(files, 3)[::-1]
    aggregated = aggregate_updates(files.model, received, Last())
    read_by_all = aggregate_updates(files.model, received, UniformAverage())
    assert aggregated.record.medians == read_by_all.record.medians
    norms = {client_id: item.norms for client_id, item in aggregated.record.influences.items()}
    assert norms == {client_id: item.norms for client_id, item in read_by_all.record.influences.items()}
    assert min(item.parameters for item in norms.values()) > 0


def test_state_goes_from_one_round_to_the_next_and_a_second_run_begins_with_the_same(
    files: ModelFiles,
) -> None:
    received = given_of(files, 3)[::-1]
    free, clipping = Last(), Last()
    first = aggregate_updates(files.model, received, free)
    assert free.runs == 1
    assert first.state is not None
    second = aggregate_updates(
        files.model, received, clipping, state=first.state, clipping=ClipTerms(max_norm=0.1)
    )
    assert clipping.runs == 2
    assert second.state is not None
    assert (int(first.state["runs"]), int(second.state["runs"])) == (1, 2)


def test_the_order_of_the_tensors_in_a_file_does_not_matter(files: ModelFiles) -> None:
    expected = aggregate_updates(files.model, given_of(files, 3), WeightedAverage())
    received = given_of(files, 3)
    updates = updates_near(files.tensors, 3)
    for shift, (given_, update) in enumerate(zip(received, updates, strict=True), 1):
        names = list(update)[shift:] + list(update)[:shift]
        write_in_order(given_.path, {name: update[name] for name in names})
    assert digest(tensors_of(aggregate_updates(files.model, received, WeightedAverage()))) == digest(
        tensors_of(expected)
    )


@pytest.mark.parametrize(
    ("model", "updates", "expected"),
    [
        (10, [13], 13),
        (10, [12, 13], 12),  # halves go to the even number
        (10, [13, 14], 14),
        (10, [12, 13, 13], 13),
        (10, [12, 12, 13], 12),
        (10, [7, 8, 7], 7),
        (0, [0, 0, 1], 0),
        (2**53 - 1, [2**53 - 1, 2**53 - 1], 2**53 - 1),  # as far as doubles count
    ],
)
def test_whole_numbers_become_the_rounded_average(
    tmp_path: Path, model: int, updates: list[int], expected: int
) -> None:
    files = ModelFiles(tmp_path, {COUNTER: torch.tensor(model), "fc": torch.ones(3)})
    received = [
        files.update(str(place), {COUNTER: torch.tensor(number), "fc": torch.ones(3)})
        for place, number in enumerate(updates)
    ]
    assert tensors_of(aggregate_updates(files.model, received, UniformAverage()))[COUNTER].item() == expected


@pytest.mark.parametrize(
    ("dtype", "model", "updates", "expected"),
    [
        (torch.uint8, [0, 250, 9], [[0, 255, 0], [255, 251, 0], [255, 250, 0]], [170, 252, 0]),
        (torch.int8, [-128, 127, 0], [[127, -128, 1], [127, -128, 1], [127, 127, 0]], [127, -43, 1]),
        (torch.uint16, [65535, 0, 1], [[0, 65535, 1], [0, 65535, 2], [0, 65535, 2]], [0, 65535, 2]),
        (torch.int32, [5, -5, 0], [[8, -8, 0], [8, -8, 0], [5, -5, 0]], [7, -7, 0]),
        (torch.bool, [False, True, False], [[True, False, True], [True, False, False], [True, False, False]],
         [True, False, False]),
    ],
)  # fmt: skip
def test_other_kinds_of_whole_numbers_do_not_wrap_around(
    tmp_path: Path, dtype: torch.dtype, model: list[int], updates: list[list[int]], expected: list[int]
) -> None:
    files = ModelFiles(tmp_path, {"numbers": torch.tensor(model, dtype=dtype)})
    received = [
        files.update(str(place), {"numbers": torch.tensor(update, dtype=dtype)})
        for place, update in enumerate(updates)
    ]
    tensors = tensors_of(aggregate_updates(files.model, received, UniformAverage()))
    assert tensors["numbers"].dtype == dtype
    assert tensors["numbers"].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.float64, 1e-6)],
)
def test_floats_of_other_widths_are_averaged(tmp_path: Path, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(2)
    model, *updates = (torch.randn(50, generator=generator).to(dtype) for _ in range(4))
    files = ModelFiles(tmp_path, {"fc": model})
    received = [files.update(str(place), {"fc": update}) for place, update in enumerate(updates)]
    averaged = tensors_of(aggregate_updates(files.model, received, UniformAverage()))["fc"]
    assert averaged.dtype == dtype
    np.testing.assert_allclose(
        averaged.to(torch.float64).numpy(), average(updates, [1, 1, 1]), rtol=tolerance, atol=tolerance
    )


def test_narrow_floats_do_not_become_infinite_on_the_way(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.tensor([60000.0, 1.0], dtype=torch.float16)})
    far = torch.tensor([-60000.0, 1.0], dtype=torch.float16)
    aggregated = aggregate_updates(files.model, [files.update("c", {"fc": far})], UniformAverage())
    assert aggregated.record.outliers == {}
    assert tensors_of(aggregated)["fc"].tolist() == [-60000.0, 1.0]


def test_nobody_counts_more_than_three_times_the_median_client(files: ModelFiles) -> None:
    received = [
        files.step("a", 10, scale=1.0),
        files.step("b", 20, scale=0.0),
        files.step("c", 10**12, scale=-1.0),
        files.step("d", 30, scale=0.0),
    ]
    tensors = tensors_of(aggregate_updates(files.model, received, WeightedAverage()))
    assert float(tensors["scale"]) == pytest.approx(0.5 + (10 - 60) / 120, abs=1e-6)


def test_updates_that_change_nothing_keep_the_model(files: ModelFiles) -> None:
    aggregated = aggregate_updates(files.model, [files.step("a"), files.step("b")], WeightedAverage())
    assert aggregated.record.outliers == {}
    assert digest(tensors_of(aggregated)) == digest(files.tensors)


def test_a_model_of_zeros_can_take_its_first_steps(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(4)})
    received = [files.step("a", fc=3.0), files.step("b", fc=5.0), files.step("c")]
    aggregated = aggregate_updates(files.model, received, UniformAverage())
    assert aggregated.record.outliers == {}
    torch.testing.assert_close(tensors_of(aggregated)["fc"], torch.full((4,), 8 / 3))
    alone = aggregate_updates(files.model, [files.step("a", fc=300.0)], UniformAverage())
    assert tensors_of(alone)["fc"].tolist() == [300.0] * 4


def test_long_steps_are_shortened_to_the_norm(files: ModelFiles) -> None:
    direction = torch.tensor([3.0, 4.0, 0, 0, 0, 0])
    long = files.step("long", fc__bias=direction, bn__running_mean=10.0)
    tensors = tensors_of(
        aggregate_updates(files.model, [long], UniformAverage(), clipping=ClipTerms(max_norm=0.5))
    )
    torch.testing.assert_close(tensors["fc.bias"] - files.tensors["fc.bias"], direction / 10)
    moved = tensors["bn.running_mean"] - files.tensors["bn.running_mean"]
    torch.testing.assert_close(moved, torch.ones(6))  # the whole step is, not only its parameters


def test_steps_within_the_norm_stay_as_they_are(files: ModelFiles) -> None:
    received = given_of(files, 3)
    free = aggregate_updates(files.model, received, WeightedAverage())
    bounded = aggregate_updates(files.model, received, WeightedAverage(), clipping=ClipTerms(max_norm=100.0))
    assert digest(tensors_of(bounded)) == digest(tensors_of(free))


def test_only_the_long_steps_are_shortened(files: ModelFiles) -> None:
    direction = torch.tensor([3.0, 4.0, 0, 0, 0, 0])
    received = [files.step("long", fc__bias=direction), files.step("short", fc__bias=direction / 50)]
    tensors = tensors_of(
        aggregate_updates(files.model, received, UniformAverage(), clipping=ClipTerms(max_norm=0.5))
    )
    torch.testing.assert_close(
        tensors["fc.bias"] - files.tensors["fc.bias"], direction * (0.1 + 0.02) / 2, rtol=1e-5, atol=1e-6
    )


def test_the_norm_is_right_for_millions_of_numbers(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(2**21)})
    tensors = tensors_of(
        aggregate_updates(
            files.model, [files.step("a", fc=0.1)], UniformAverage(), clipping=ClipTerms(max_norm=1.0)
        )
    )
    assert float(np.linalg.norm(tensors["fc"].to(torch.float64).numpy())) == pytest.approx(1.0, rel=2e-5)


BAD_STEPS: list[tuple[str, float]] = [
    ("fc__weight", float("nan")),
    ("fc__weight", float("inf")),
    ("scale", float("-inf")),
    ("fc__weight", 1e30),
    ("fc__bias", 1e4),
    ("bn__running_var", 1e9),
    ("bn__running_var", float("nan")),
    ("bn__running_var", -5.0),
    ("bn__running_mean", -1e9),
]


@pytest.mark.parametrize(("factor", "max_norm"), [(None, None), (None, 0.1), (2.0, None)])
@pytest.mark.parametrize("kind", AGGREGATORS.values())
@pytest.mark.parametrize(("name", "step"), BAD_STEPS)
def test_outliers_are_discarded(
    files: ModelFiles,
    name: str,
    step: float,
    kind: type[Aggregator],
    factor: float | None,
    max_norm: float | None,
) -> None:
    good = given_of(files, 4)
    bad = files.step("bad", 10**6, **{name: step})
    told = list[float]()
    aggregated = aggregate_updates(
        files.model,
        [*good[:2], bad, *good[2:]],
        kind(),
        clipping=ClipTerms(factor, max_norm),
        progress=told.append,
    )
    assert set(aggregated.record.outliers) == {"bad"}
    part = "running statistics" if name.startswith("bn") else "parameters"
    assert f"the update changes the {part} by" in aggregated.record.outliers["bad"]
    without = aggregate_updates(files.model, good, kind(), clipping=ClipTerms(factor, max_norm))
    assert without.record.outliers == {}
    assert digest(tensors_of(aggregated)) == digest(tensors_of(without))
    assert told[-1] == 1.0


def test_if_all_are_left_out_there_is_no_model(files: ModelFiles) -> None:
    received = [files.step("a", fc__bias=float("nan")), files.step("b", scale=float("inf"))]
    aggregated = aggregate_updates(files.model, received, WeightedAverage())
    assert aggregated.model is None
    assert set(aggregated.record.outliers) == {"a", "b"}


def test_a_client_that_is_alone_is_judged_by_the_model(files: ModelFiles) -> None:
    assert aggregate_updates(files.model, [files.step("a", fc__bias=1e5)], WeightedAverage()).model is None
    assert (
        aggregate_updates(files.model, [files.step("a", fc__bias=1.0)], WeightedAverage()).record.outliers
        == {}
    )


def test_the_part_that_is_done_is_told_now_and_then(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(2**20)})
    told = list[float]()
    aggregate_updates(files.model, [files.step("a", fc=1.0)], WeightedAverage(), progress=told.append)
    assert len(told) > 4
    assert told == sorted(set(told))
    assert told[-1] == 1.0


def test_adding_up_ends_when_it_is_told_to(files: ModelFiles) -> None:
    def stop(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        aggregate_updates(files.model, given_of(files, 2), WeightedAverage(), progress=stop)


_MEASURE_MEMORY = """
import resource, sys
from pathlib import Path
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.weighted import WeightedAverage

folder = Path(sys.argv[1])
for count in (10, 100):
    given = [ReceivedUpdate(str(n), folder / f"update-{n % 5}", 1) for n in range(count)]
    model = aggregate_updates(folder / "model", given, WeightedAverage()).model
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is in other units")
def test_a_hundred_updates_take_no_more_memory_than_ten(tmp_path: Path) -> None:
    model = {"fc": torch.zeros(2**20)}  # 4 MiB
    files = ModelFiles(tmp_path, model)
    for place in range(5):
        files.step(str(place), fc=0.01 * (place + 1))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE_MEMORY, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=120,
        text=True,
    )
    ten, hundred = map(int, done.stdout.split())
    assert hundred - ten < 4 * 2**20
