import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.learning.aggregation import Aggregated, Contribution, aggregate
from services.learning.rules import RULES
from services.learning.rules.rule import Rule
from services.learning.rules.uniform import UniformAverage
from services.learning.rules.weighted import WeightedAverage
from tests.unit.learning.digests import digest
from tests.unit.learning.model_files import COUNTER, ModelFiles, average, small_model, write_in_order


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles(tmp_path, small_model())


def tensors_of(aggregated: Aggregated) -> dict[str, Tensor]:
    assert aggregated.tensors is not None
    return aggregated.tensors


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


def given_of(files: ModelFiles, count: int) -> list[Contribution]:
    updates = updates_near(files.tensors, count)
    return [files.update(f"c{place}", update, 10 + 7 * place) for place, update in enumerate(updates)]


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("count", [1, 2, 10])
def test_the_model_becomes_the_average_of_the_updates(
    files: ModelFiles, rule: type[Rule], count: int
) -> None:
    contributions = given_of(files, count)
    updates = updates_near(files.tensors, count)
    weights = [given.data_samples if rule is WeightedAverage else 1 for given in contributions]
    aggregated = aggregate(files.model, contributions, rule)
    assert aggregated.left_out == {}
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
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))  # none is cut off
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
        contributions = [
            files.update(str(place), update, counts[place]) for place, update in enumerate(updates)
        ]
        aggregated = aggregate(files.model, contributions, WeightedAverage)
        for name, tensor in tensors_of(aggregated).items():
            expected = average([update[name] for update in updates], counts)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=0, atol=2e-6)


def test_the_result_is_the_same_each_time_and_the_files_too(files: ModelFiles) -> None:
    contributions = given_of(files, 5)
    paths = [files.model, *(given.path for given in contributions)]
    before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    first = digest(tensors_of(aggregate(files.model, contributions, WeightedAverage)))
    assert digest(tensors_of(aggregate(files.model, contributions, WeightedAverage))) == first
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] == before


def test_updates_are_added_up_in_the_order_given(files: ModelFiles) -> None:
    class Last:
        def __init__(self, data_samples: Sequence[int]) -> None:
            assert data_samples == [24, 17, 10]

        def combine(self, values: Iterable[Tensor]) -> Tensor:
            return [value.clone() for value in values][-1]

    contributions = given_of(files, 3)[::-1]
    tensors = tensors_of(aggregate(files.model, contributions, Last))
    assert digest(tensors) == digest(updates_near(files.tensors, 3)[0])


def test_the_order_of_the_tensors_in_a_file_does_not_matter(files: ModelFiles) -> None:
    expected = aggregate(files.model, given_of(files, 3), WeightedAverage)
    contributions = given_of(files, 3)
    updates = updates_near(files.tensors, 3)
    for shift, (given_, update) in enumerate(zip(contributions, updates, strict=True), 1):
        names = list(update)[shift:] + list(update)[:shift]
        write_in_order(given_.path, {name: update[name] for name in names})
    assert digest(tensors_of(aggregate(files.model, contributions, WeightedAverage))) == digest(
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
    contributions = [
        files.update(str(place), {COUNTER: torch.tensor(number), "fc": torch.ones(3)})
        for place, number in enumerate(updates)
    ]
    assert tensors_of(aggregate(files.model, contributions, UniformAverage))[COUNTER].item() == expected


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
    contributions = [
        files.update(str(place), {"numbers": torch.tensor(update, dtype=dtype)})
        for place, update in enumerate(updates)
    ]
    tensors = tensors_of(aggregate(files.model, contributions, UniformAverage))
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
    contributions = [files.update(str(place), {"fc": update}) for place, update in enumerate(updates)]
    averaged = tensors_of(aggregate(files.model, contributions, UniformAverage))["fc"]
    assert averaged.dtype == dtype
    np.testing.assert_allclose(
        averaged.to(torch.float64).numpy(), average(updates, [1, 1, 1]), rtol=tolerance, atol=tolerance
    )


def test_narrow_floats_do_not_become_infinite_on_the_way(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.tensor([60000.0, 1.0], dtype=torch.float16)})
    far = torch.tensor([-60000.0, 1.0], dtype=torch.float16)
    aggregated = aggregate(files.model, [files.update("c", {"fc": far})], UniformAverage)
    assert aggregated.left_out == {}
    assert tensors_of(aggregated)["fc"].tolist() == [-60000.0, 1.0]


def test_nobody_counts_more_than_ten_times_the_median_client(files: ModelFiles) -> None:
    contributions = [
        files.step("a", 10, scale=1.0),
        files.step("b", 20, scale=0.0),
        files.step("c", 10**12, scale=-1.0),
        files.step("d", 30, scale=0.0),
    ]
    tensors = tensors_of(aggregate(files.model, contributions, WeightedAverage))
    assert float(tensors["scale"]) == pytest.approx(0.5 + (10 - 200) / 260, abs=1e-6)


def test_updates_that_change_nothing_keep_the_model(files: ModelFiles) -> None:
    aggregated = aggregate(files.model, [files.step("a"), files.step("b")], WeightedAverage)
    assert aggregated.left_out == {}
    assert digest(tensors_of(aggregated)) == digest(files.tensors)


def test_a_model_of_zeros_can_take_its_first_steps(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(4)})
    contributions = [files.step("a", fc=3.0), files.step("b", fc=5.0), files.step("c")]
    aggregated = aggregate(files.model, contributions, UniformAverage)
    assert aggregated.left_out == {}
    torch.testing.assert_close(tensors_of(aggregated)["fc"], torch.full((4,), 8 / 3))
    alone = aggregate(files.model, [files.step("a", fc=300.0)], UniformAverage)
    assert tensors_of(alone)["fc"].tolist() == [300.0] * 4


def test_long_steps_are_shortened_to_the_norm(files: ModelFiles) -> None:
    direction = torch.tensor([3.0, 4.0, 0, 0, 0, 0])
    long = files.step("long", fc__bias=direction, bn__running_mean=10.0)
    tensors = tensors_of(aggregate(files.model, [long], UniformAverage, max_norm=0.5))
    torch.testing.assert_close(tensors["fc.bias"] - files.tensors["fc.bias"], direction / 10)
    moved = tensors["bn.running_mean"] - files.tensors["bn.running_mean"]
    torch.testing.assert_close(moved, torch.ones(6))  # the whole step is, not only its parameters


def test_steps_within_the_norm_stay_as_they_are(files: ModelFiles) -> None:
    contributions = given_of(files, 3)
    free = aggregate(files.model, contributions, WeightedAverage)
    bounded = aggregate(files.model, contributions, WeightedAverage, max_norm=100.0)
    assert digest(tensors_of(bounded)) == digest(tensors_of(free))


def test_only_the_long_steps_are_shortened(files: ModelFiles) -> None:
    direction = torch.tensor([3.0, 4.0, 0, 0, 0, 0])
    contributions = [files.step("long", fc__bias=direction), files.step("short", fc__bias=direction / 50)]
    tensors = tensors_of(aggregate(files.model, contributions, UniformAverage, max_norm=0.5))
    torch.testing.assert_close(
        tensors["fc.bias"] - files.tensors["fc.bias"], direction * (0.1 + 0.02) / 2, rtol=1e-5, atol=1e-6
    )


def test_the_norm_is_right_for_millions_of_numbers(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(2**21)})
    tensors = tensors_of(aggregate(files.model, [files.step("a", fc=0.1)], UniformAverage, max_norm=1.0))
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


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize(("name", "step"), BAD_STEPS)
def test_steps_out_of_all_proportion_are_left_out(
    files: ModelFiles, name: str, step: float, rule: type[Rule], max_norm: float | None
) -> None:
    good = given_of(files, 4)
    bad = files.step("bad", 10**6, **{name: step})
    told = list[float]()
    aggregated = aggregate(
        files.model, [*good[:2], bad, *good[2:]], rule, max_norm=max_norm, progress=told.append
    )
    assert set(aggregated.left_out) == {"bad"}
    part = "running statistics" if name.startswith("bn") else "parameters"
    assert f"its update moves the {part} by" in aggregated.left_out["bad"]
    without = aggregate(files.model, good, rule, max_norm=max_norm)
    assert without.left_out == {}
    assert digest(tensors_of(aggregated)) == digest(tensors_of(without))
    assert told[-1] == 1.0


def test_if_all_are_left_out_there_is_no_model(files: ModelFiles) -> None:
    contributions = [files.step("a", fc__bias=float("nan")), files.step("b", scale=float("inf"))]
    aggregated = aggregate(files.model, contributions, WeightedAverage)
    assert aggregated.tensors is None
    assert set(aggregated.left_out) == {"a", "b"}


def test_a_client_that_is_alone_is_judged_by_the_model(files: ModelFiles) -> None:
    assert aggregate(files.model, [files.step("a", fc__bias=1e5)], WeightedAverage).tensors is None
    assert aggregate(files.model, [files.step("a", fc__bias=1.0)], WeightedAverage).left_out == {}


def test_the_part_that_is_done_is_told_now_and_then(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, {"fc": torch.zeros(2**20)})
    told = list[float]()
    aggregate(files.model, [files.step("a", fc=1.0)], WeightedAverage, progress=told.append)
    assert len(told) > 4
    assert told == sorted(set(told))
    assert told[-1] == 1.0


def test_adding_up_ends_when_it_is_told_to(files: ModelFiles) -> None:
    def stop(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        aggregate(files.model, given_of(files, 2), WeightedAverage, progress=stop)


_MEASURE_MEMORY = """
import resource, sys
from pathlib import Path
from services.learning.aggregation import Contribution, aggregate
from services.learning.rules.weighted import WeightedAverage

folder = Path(sys.argv[1])
for count in (10, 100):
    given = [Contribution(str(n), folder / f"update-{n % 5}", 1) for n in range(count)]
    tensors = aggregate(folder / "model", given, WeightedAverage).tensors
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
