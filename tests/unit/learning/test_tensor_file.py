from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from services.learning.outliers import kind_of
from services.learning.tensor_file import TensorFile, new_buffer, new_tensors, plan_runs, write_run
from services.tensors import TensorSpec
from tests.unit.learning.digests import digest
from tests.unit.learning.model_files import small_model, write_in_order


def copy_in_runs(layout: Path, source: Path) -> dict[str, Tensor]:
    """The tensors of one file, read in the runs of another."""
    specs = TensorFile(layout).specs
    tensors, buffer, file = new_tensors(specs), new_buffer(), TensorFile(source)
    for run in plan_runs(specs, {name: kind_of(name) for name in specs}):
        write_run(run, file.read(run, buffer).to(torch.float64), tensors)
    return tensors


def test_all_kinds_of_numbers_are_read_as_they_are(tmp_path: Path) -> None:
    numbers = torch.tensor([0, 1, 1, 0, 1])
    dtypes = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
        torch.int64, torch.uint64, torch.float16, torch.float32, torch.float64,
    ]  # fmt: skip
    tensors = {str(dtype): numbers.to(dtype) for dtype in dtypes}
    save_file({**tensors, "bf16": numbers.to(torch.bfloat16)}, tmp_path / "model")
    copied = copy_in_runs(tmp_path / "model", tmp_path / "model")
    assert torch.equal(copied.pop("bf16"), numbers.to(torch.bfloat16))
    assert digest(copied) == digest(tensors)


def test_tensors_longer_than_a_run_and_shorter_ones_and_empty_ones(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 50_000), (), (0, 4), (65_536,), (7,), (1, 1), (200, 1000)]
    tensors = {f"t{place}": torch.randn(shape, generator=generator) for place, shape in enumerate(shapes)}
    save_file(tensors, tmp_path / "model")
    assert digest(copy_in_runs(tmp_path / "model", tmp_path / "model")) == digest(tensors)


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    tensors = {**small_model(), "long": torch.arange(100_000.0)}
    save_file(tensors, tmp_path / "model")
    names = list(tensors)
    for shift in range(len(names)):
        order = [*names[shift:], *names[:shift]][::-1]
        write_in_order(tmp_path / "other", {name: tensors[name] for name in order})
        assert digest(copy_in_runs(tmp_path / "model", tmp_path / "other")) == digest(tensors)
        assert digest(copy_in_runs(tmp_path / "other", tmp_path / "model")) == digest(tensors)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["F32", "I64", "F64", "BOOL"]),
            st.integers(0, 200_000),
            st.sampled_from(["weight", "running_var", "num_batches_tracked"]),
        ),
        max_size=8,
    )
)
def test_runs_have_each_number_once_and_are_short_and_of_one_kind(
    tensors: list[tuple[str, int, str]],
) -> None:
    specs = {
        f"{place}.{name}": TensorSpec(dtype, (size,)) for place, (dtype, size, name) in enumerate(tensors)
    }
    ends = dict.fromkeys(specs, 0)
    room = len(new_buffer())
    for run in plan_runs(specs, {name: kind_of(name) for name in specs}):
        assert 0 < run.numbers * run.dtype.itemsize <= room
        for name, first, last in run.segments:
            assert first == ends[name] < last
            assert kind_of(name) == run.kind
            assert new_tensors({name: specs[name]})[name].dtype == run.dtype
            ends[name] = last
    assert ends == {name: spec.shape[0] for name, spec in specs.items()}


def test_whole_numbers_are_rounded_and_halves_go_to_the_even_one(tmp_path: Path) -> None:
    save_file({"numbers": torch.zeros(6, dtype=torch.int64)}, tmp_path / "model")
    specs = TensorFile(tmp_path / "model").specs
    (run,) = plan_runs(specs, {"numbers": kind_of("numbers")})
    tensors = new_tensors(specs)
    write_run(run, torch.tensor([2.5, 3.5, 2.7, 2.3, -2.7, -2.5], dtype=torch.float64), tensors)
    assert tensors["numbers"].tolist() == [2, 4, 3, 2, -3, -2]


def test_a_file_that_became_shorter_is_not_read(tmp_path: Path) -> None:
    save_file({"fc": torch.ones(1000)}, tmp_path / "model")
    file = TensorFile(tmp_path / "model")
    (run,) = plan_runs(file.specs, {"fc": kind_of("fc")})
    content = (tmp_path / "model").read_bytes()
    (tmp_path / "model").write_bytes(content[:-1])
    with pytest.raises(EOFError, match="model is shorter than its header says"):
        file.read(run, new_buffer())
