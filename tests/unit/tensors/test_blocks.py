from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from services.tensors.blocks import (
    BLOCK_NUMBERS,
    Block,
    BlockBuffer,
    ModelBuffer,
    Segment,
    TensorFile,
    plan_blocks,
)
from services.tensors.layout import TensorKind, TensorSpec, kind_of, read_layout
from tests.unit.aggregators.model_files import (
    COUNTER,
    MEAN,
    VARIANCE,
    loaded,
    small_model,
    write_in_order,
)
from tests.unit.learning.digests import digest


def copy_in_blocks(layout_of: Path, source: Path) -> dict[str, Tensor]:
    """The tensors of one file, read in the blocks of another."""
    layout = read_layout(layout_of)
    blocks, copy = plan_blocks(layout), ModelBuffer(layout)
    file = TensorFile(source, BlockBuffer(blocks))
    for block in blocks:
        copy.write(block, file.read(block).astype(np.float64))
    return loaded(copy)


def test_tensors_are_told_apart_by_the_names_that_torch_gives_them() -> None:
    assert kind_of(MEAN) == TensorKind.MEANS
    assert kind_of(VARIANCE) == TensorKind.VARIANCES
    assert kind_of(COUNTER) == TensorKind.COUNTERS
    for name in ("fc.weight", "running_mean.weight", "running_variance", "num_batches_tracked.bias"):
        assert kind_of(name) == TensorKind.PARAMETERS


def test_all_kinds_of_numbers_are_read_as_they_are(tmp_path: Path) -> None:
    numbers = torch.tensor([0, 1, 1, 0, 1])
    dtypes = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
        torch.int64, torch.uint64, torch.float16, torch.float32, torch.float64,
    ]  # fmt: skip
    tensors = {str(dtype): numbers.to(dtype) for dtype in dtypes}
    save_file({**tensors, "bf16": numbers.to(torch.bfloat16)}, tmp_path / "model")
    copied = copy_in_blocks(tmp_path / "model", tmp_path / "model")
    assert torch.equal(copied.pop("bf16"), numbers.to(torch.bfloat16))
    assert digest(copied) == digest(tensors)


def test_tensors_longer_than_a_block_and_shorter_ones_and_empty_ones(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 50_000), (), (0, 4), (65_536,), (7,), (1, 1), (200, 1000)]
    tensors = {f"t{place}": torch.randn(shape, generator=generator) for place, shape in enumerate(shapes)}
    save_file(tensors, tmp_path / "model")
    assert digest(copy_in_blocks(tmp_path / "model", tmp_path / "model")) == digest(tensors)


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    tensors = {**small_model(), "long": torch.arange(100_000.0)}
    save_file(tensors, tmp_path / "model")
    names = list(tensors)
    for shift in range(len(names)):
        order = [*names[shift:], *names[:shift]][::-1]
        write_in_order(tmp_path / "other", {name: tensors[name] for name in order})
        assert digest(copy_in_blocks(tmp_path / "model", tmp_path / "other")) == digest(tensors)
        assert digest(copy_in_blocks(tmp_path / "other", tmp_path / "model")) == digest(tensors)


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
def test_blocks_have_each_number_once_and_are_short_and_of_one_kind(
    tensors: list[tuple[str, int, str]],
) -> None:
    layout = {
        f"{place}.{name}": TensorSpec(dtype, (size,)) for place, (dtype, size, name) in enumerate(tensors)
    }
    ends = dict.fromkeys(layout, 0)
    blocks = plan_blocks(layout)
    assert [block.index for block in blocks] == list(range(len(blocks)))
    for block in blocks:
        assert 0 < block.size <= BLOCK_NUMBERS
        assert block.size == sum(last - first for _, first, last in block.segments)
        for name, first, last in block.segments:
            assert first == ends[name] < last
            assert (layout[name].dtype, kind_of(name)) == (block.dtype, block.kind)
            ends[name] = last
    assert ends == {name: spec.shape[0] for name, spec in layout.items()}


def one_block(dtype: str, size: int) -> Block:
    return Block(0, dtype, TensorKind.PARAMETERS, (Segment("numbers", 0, size),), size)


def test_whole_numbers_are_rounded_and_halves_go_to_the_even_one() -> None:
    model = ModelBuffer({"numbers": TensorSpec("I64", (6,))})
    model.write(one_block("I64", 6), np.array([2.5, 3.5, 2.7, 2.3, -2.7, -2.5]))
    assert loaded(model)["numbers"].tolist() == [2, 4, 3, 2, -3, -2]


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    numbers = np.random.default_rng(3).normal(size=1000) * 10.0 ** np.arange(-25, 25).repeat(20)
    halves = np.array([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -1.0 - 2.0**-8, 0.0, -0.0])
    given = np.concatenate([numbers, halves])
    model = ModelBuffer({"numbers": TensorSpec("BF16", (len(given),))})
    model.write(one_block("BF16", len(given)), given)
    expected = torch.from_numpy(given).to(torch.float32).to(torch.bfloat16)
    assert torch.equal(loaded(model)["numbers"].view(torch.int16), expected.view(torch.int16))


def test_a_file_that_became_shorter_is_not_read(tmp_path: Path) -> None:
    save_file({"fc": torch.ones(1000)}, tmp_path / "model")
    blocks = plan_blocks(read_layout(tmp_path / "model"))
    file = TensorFile(tmp_path / "model", BlockBuffer(blocks))
    content = (tmp_path / "model").read_bytes()
    (tmp_path / "model").write_bytes(content[:-1])
    with pytest.raises(EOFError, match="model is shorter than its header says"):
        file.read(blocks[0])
