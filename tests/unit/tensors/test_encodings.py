"""Encodings of updates and models: sizes, rounding, decoding, and refusal of bad files."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from services.errors import BadTensorsError
from services.tensors.blocks import BlockBuffer, TensorFile, plan_blocks
from services.tensors.encoded_files import EncodedFile, check_encoded, decode_float16, encode_file
from services.tensors.encodings import ENCODINGS, MODEL_ENCODINGS, make_encoding
from services.tensors.encodings.encoding import Encoding
from services.tensors.layout import Layout, read_layout, split_file

Arrays = dict[str, npt.NDArray[Any]]

SHAPES: Mapping[str, tuple[int, ...]] = {
    "conv.weight": (16, 8, 3, 3),
    "dense.weight": (37, 1111),
    "long": (5003,),
    "narrow": (600, 3),
    "dense.bias": (37,),
    "norm.running_mean": (700,),
}
ENCODED = ("conv.weight", "dense.weight", "long", "narrow")


def model_of(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    tensors: Arrays = {name: rng.normal(0, 0.05, shape).astype("f4") for name, shape in SHAPES.items()}
    return tensors | {"norm.num_batches_tracked": np.array(3, np.int64)}


def trained_of(model: Arrays, seed: int = 1) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        name: array + rng.normal(0, 0.01, array.shape).astype("f4") if array.dtype == np.float32 else array
        for name, array in model.items()
    }


def encodings() -> list[Encoding]:
    return [make_encoding(name, 0.1) for name in ENCODINGS] + [make_encoding("int8-topk", 0.037)]


def name_of(encoding: Encoding) -> str:
    return f"{encoding.name}-{getattr(encoding, 'topk_fraction', '')}"


def encoded(encoding: Encoding, model: Arrays, trained: Arrays, seed: int = 0) -> bytes:
    return b"".join(encode_file(encoding, save(trained), seed=seed, received=save(model)))


def decode(path: Path, encoding: Encoding, model: Path) -> Arrays:
    """All numbers of an update, read block by block."""
    layout = read_layout(model)
    blocks = plan_blocks(layout)
    own = TensorFile(model, BlockBuffer(blocks))
    arrays: Arrays = {name: np.empty(math.prod(spec.shape)) for name, spec in layout.items()}
    update = EncodedFile(path, BlockBuffer(blocks), layout, encoding, own)
    for block in blocks:
        numbers, filled = update.read(block), 0
        for name, first, last in block.segments:
            arrays[name][first:last] = numbers[filled : filled + last - first]
            filled += last - first
    return {name: array.reshape(layout[name].shape) for name, array in arrays.items()}


def steps_of(encoding: Encoding, model: Arrays, trained: Arrays, name: str) -> npt.NDArray[Any]:
    """The largest error that each number may have."""
    if encoding.name == "float32":
        return np.zeros(SHAPES[name])
    if encoding.name == "float16":
        spacing: npt.NDArray[Any] = np.spacing(np.abs(trained[name]).astype("f2")).astype("f4")
        return spacing
    scales = load(encoded(encoding, model, trained))[f"{name}:scale"]
    row = math.prod(SHAPES[name]) // len(scales)
    steps: npt.NDArray[Any] = np.repeat(scales, row).reshape(SHAPES[name]) * 1.0001 + 1e-8
    return steps


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_file_has_the_announced_size_and_is_what_safetensors_would_write(encoding: Encoding) -> None:
    model = model_of()
    content = encoded(encoding, model, trained_of(model))
    assert len(content) == encoding.encoded_size(split_file(save(model))[0])
    assert content == save(load(content))


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_size_of_a_large_model_is_near_the_factor(encoding: Encoding) -> None:
    content = save({"weight": np.zeros((512, 8192), "f4")})
    size = encoding.encoded_size(split_file(content)[0])
    assert size / len(content) == pytest.approx(float(encoding.size_factor), rel=0.02)


def test_size_factors_are_exact() -> None:
    factors = {name: make_encoding(name, 0.1).size_factor for name in ENCODINGS}
    assert factors == {
        "float32": 1,
        "float16": Fraction(1, 2),
        "int8": Fraction(1, 4),
        "int8-topk": Fraction(9, 160),
    }


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_decoded_update_is_within_a_step_of_what_was_trained(encoding: Encoding, tmp_path: Path) -> None:
    model = model_of()
    trained = trained_of(model)
    (tmp_path / "model").write_bytes(save(model))
    (tmp_path / "update").write_bytes(encoded(encoding, model, trained))
    check_encoded(tmp_path / "update", encoding, read_layout(tmp_path / "model"))
    decoded = decode(tmp_path / "update", encoding, tmp_path / "model")
    for name, array in trained.items():
        if name not in ENCODED:
            assert np.array_equal(decoded[name], array)
            continue
        error = np.abs(decoded[name] - array)
        if encoding.is_sparse:  # those that are not sent are the model's, and differ less than those sent
            kept = decoded[name] == model[name]
            difference = np.abs(array - model[name])
            assert difference[kept].max() <= difference[~kept].min() + 2 * error[~kept].max()
            error = np.where(kept, 0, error)
        assert (error <= steps_of(encoding, model, trained, name)).all()


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_mean_of_encodings_is_what_was_trained(encoding: Encoding, tmp_path: Path) -> None:
    """10,000 encodings, each with its own random bits: as many rows of one tensor with equal numbers."""
    rng = np.random.default_rng(5)
    repeats, numbers = 10_000, 40
    row = rng.normal(0, 0.01, numbers).astype("f4")
    row[:4] = [0.0, 1e-7, -3e-6, 0.0400001]
    model = {"weight": np.zeros((repeats, numbers), "f4")}
    trained = {"weight": np.tile(row, (repeats, 1))}
    (tmp_path / "model").write_bytes(save(model))
    (tmp_path / "update").write_bytes(encoded(encoding, model, trained))
    if encoding.is_sparse:
        encoding = make_encoding("int8-topk", 1.0)  # those that are not sent are not rounded
        (tmp_path / "update").write_bytes(encoded(encoding, model, trained))
    decoded = decode(tmp_path / "update", encoding, tmp_path / "model")["weight"]
    step = steps_of_row(encoding, row)
    below = np.floor(row / step) * step if step.any() else row
    share = np.clip((row - below) / np.where(step, step, 1), 0, 1)
    standard_error = step * np.sqrt(share * (1 - share) / repeats)
    allowed = 4 * standard_error + step * 2.0**-16 + 1e-9
    assert (np.abs(decoded.mean(axis=0) - row) <= allowed).all()


def steps_of_row(encoding: Encoding, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if encoding.name == "float32":
        return np.zeros(row.size)
    if encoding.name == "float16":
        steps: npt.NDArray[Any] = np.spacing(np.abs(row).astype("f2")).astype("f8")
        return steps
    return np.full(row.size, np.abs(row).max() * (1 + 2.0**-18) / 127)


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_same_seed_gives_the_same_bytes(encoding: Encoding) -> None:
    model = model_of()
    trained = trained_of(model)
    assert encoded(encoding, model, trained, seed=7) == encoded(encoding, model, trained, seed=7)
    if encoding.name != "float32":
        assert encoded(encoding, model, trained, seed=7) != encoded(encoding, model, trained, seed=8)


def test_unchanged_model_decodes_to_itself(tmp_path: Path) -> None:
    model = model_of()
    (tmp_path / "model").write_bytes(save(model))
    for encoding in encodings():
        if not encoding.is_difference:
            continue
        (tmp_path / "update").write_bytes(encoded(encoding, model, model))
        decoded = decode(tmp_path / "update", encoding, tmp_path / "model")
        assert all(np.array_equal(decoded[name], array) for name, array in model.items())


def test_statistics_counters_and_small_tensors_travel_as_they_are() -> None:
    model = model_of()
    for encoding in encodings():
        layout = encoding.encoded_layout(split_file(save(model))[0])
        assert layout["norm.running_mean"].dtype == layout["dense.bias"].dtype == "F32"
        assert layout["norm.num_batches_tracked"].dtype == "I64"


def test_tensor_whose_scales_would_have_a_name_of_the_model_is_not_encoded(tmp_path: Path) -> None:
    model: Arrays = {"weight": np.ones((600, 40), "f4"), "weight:scale": np.ones(3, "f4")}
    trained: Arrays = {"weight": model["weight"] * 2, "weight:scale": model["weight:scale"]}
    (tmp_path / "model").write_bytes(save(model))
    encoding = make_encoding("int8", 0.1)
    (tmp_path / "update").write_bytes(encoded(encoding, model, trained))
    check_encoded(tmp_path / "update", encoding, read_layout(tmp_path / "model"))
    assert (decode(tmp_path / "update", encoding, tmp_path / "model")["weight"] == 2).all()


def test_difference_is_taken_to_the_model_as_received(tmp_path: Path) -> None:
    model = model_of()
    half = make_encoding("float16", 0.1)
    received = decode_float16(b"".join(encode_file(half, save(model), seed=3)))
    trained = trained_of(load(received))
    (tmp_path / "model").write_bytes(received)
    encoding = make_encoding("int8", 0.1)
    content = b"".join(encode_file(encoding, save(trained), seed=0, received=received))
    (tmp_path / "update").write_bytes(content)
    decoded = decode(tmp_path / "update", encoding, tmp_path / "model")
    scales = load(content)["dense.weight:scale"]
    error = np.abs(decoded["dense.weight"] - trained["dense.weight"])
    assert (error <= scales[:, None] * 1.0001 + 1e-8).all()


def test_models_travel_as_parameters() -> None:
    assert set(MODEL_ENCODINGS) == {"float32", "float16"}
    with pytest.raises(ValueError, match="the model is needed"):
        encode_file(make_encoding("int8", 0.1), save(model_of()), seed=0)


def test_update_of_another_model_cannot_be_encoded() -> None:
    with pytest.raises(BadTensorsError, match="same tensors"):
        encode_file(
            make_encoding("int8", 0.1),
            save({"weight": np.zeros(600, "f4")}),
            seed=0,
            received=save({"weight": np.zeros(601, "f4")}),
        )


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_update_that_is_not_finite_is_refused_where_it_arrives(
    encoding: Encoding, number: float, tmp_path: Path
) -> None:
    model = model_of()
    trained = trained_of(model)
    trained["dense.weight"][3, 7] = number
    (tmp_path / "update").write_bytes(encoded(encoding, model, trained))
    if encoding.name == "float16" and not math.isnan(number):
        return  # the largest number of half precision stands for it
    with pytest.raises(BadTensorsError, match="finite"):
        check_encoded(tmp_path / "update", encoding, split_file(save(model))[0])


def hostile_files(good: Arrays) -> Iterator[tuple[str, Arrays]]:
    """Files that no client makes, and what is wrong with each."""
    for name in good:
        yield "is missing", {other: array for other, array in good.items() if other != name}
    yield "is not expected", {**good, "dense.weight:more": np.zeros(3, "f4")}
    for name, array in good.items():
        yield "dtype", {**good, name: array.astype("f8" if array.dtype != np.float64 else "f4")}
        yield "shape", {**good, name: np.zeros((*array.shape, 2), array.dtype)}
        if array.ndim:
            yield "shape", {**good, name: np.zeros((array.shape[0] + 1, *array.shape[1:]), array.dtype)}
        if array.dtype == np.float32:
            for bad in (math.nan, math.inf):
                spoilt = array.copy()
                spoilt.flat[-1] = bad
                yield "finite", {**good, name: spoilt}
        if name.endswith(":scale"):
            for bad in (-1e-9, 3e38):
                spoilt = array.copy()
                spoilt.flat[0] = bad
                yield "not all from 0", {**good, name: spoilt}
        if name.endswith(":positions"):
            yield "positions, and there are", {**good, name: np.zeros_like(array)}
            yield "positions, and there are", {**good, name: np.full_like(array, 255)}
            fewer = array.copy()
            fewer[np.flatnonzero(fewer)[0]] = 0
            yield "positions, and there are", {**good, name: fewer}


@pytest.mark.parametrize("encoding", encodings(), ids=name_of)
def test_hostile_files_are_refused_with_the_tensor_and_the_reason(encoding: Encoding, tmp_path: Path) -> None:
    model = model_of()
    layout = split_file(save(model))[0]
    good = load(encoded(encoding, model, trained_of(model)))
    tried = 0
    for reason, arrays in hostile_files(good):
        (tmp_path / "update").write_bytes(save(arrays))
        with pytest.raises(BadTensorsError, match=f"tensor '.*{reason}"):
            check_encoded(tmp_path / "update", encoding, layout)
        tried += 1
    assert tried >= 30


def test_position_beyond_the_end_of_the_tensor_is_refused(tmp_path: Path) -> None:
    encoding = make_encoding("int8-topk", 0.1)
    model = model_of()
    arrays = load(encoded(encoding, model, trained_of(model)))
    bitmap = arrays["long:positions"].copy()  # 5003 numbers: of the last byte three bits are used
    bitmap[np.flatnonzero(bitmap)[0]] &= bitmap[np.flatnonzero(bitmap)[0]] - 1
    bitmap[-1] |= 0x80
    (tmp_path / "update").write_bytes(save({**arrays, "long:positions": bitmap}))
    with pytest.raises(BadTensorsError, match="beyond the tensor's end"):
        check_encoded(tmp_path / "update", encoding, split_file(save(model))[0])


def test_no_encoding_takes_more_room_than_the_model() -> None:
    layout: Layout = split_file(save(model_of()))[0]
    for encoding in [*encodings(), make_encoding("int8-topk", 1.0)]:
        assert encoding.encoded_size(layout) <= len(save(model_of())) + 1000  # names in the header


def test_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    model = model_of()
    layout = split_file(save(model))[0]
    for sent in encodings():
        (tmp_path / "update").write_bytes(encoded(sent, model, trained_of(model)))
        for expected in encodings():
            if sent != expected and not (type(sent) is type(expected) and sent.name != "int8-topk"):
                with pytest.raises(BadTensorsError):
                    check_encoded(tmp_path / "update", expected, layout)
