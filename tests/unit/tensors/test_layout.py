import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from services.errors import BadTensorsError
from services.tensors import layout as layout_module
from services.tensors.layout import (
    MAX_HEADER_BYTES,
    TensorSpec,
    check_finite,
    check_same_layout,
    data_bytes,
    encode_header,
    largest_file,
    read_layout,
)

GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def in_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def assert_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(BadTensorsError, match=message):
        read_layout(path)


def test_the_layout_of_a_saved_file(path: Path) -> None:
    saved: dict[str, npt.NDArray[Any]] = {
        "fc.weight": np.ones((3, 4), np.float32),
        "fc.bias": np.ones(3, np.float64),
        "half": np.ones(5, np.float16),
        "count": np.array(7, np.int64),
        "none": np.ones((2, 0), np.float32),
        "flags": np.array([True, False]),
    }
    path.write_bytes(save(saved, {"format": "np"}))
    layout = read_layout(path)
    assert layout == {
        "fc.weight": TensorSpec("F32", (3, 4)),
        "fc.bias": TensorSpec("F64", (3,)),
        "half": TensorSpec("F16", (5,)),
        "count": TensorSpec("I64", ()),
        "none": TensorSpec("F32", (2, 0)),
        "flags": TensorSpec("BOOL", (2,)),
    }
    assert data_bytes(layout) == sum(tensor.nbytes for tensor in saved.values())
    assert path.stat().st_size <= largest_file(layout) == 8 + MAX_HEADER_BYTES + data_bytes(layout)
    check_finite(path)


def test_a_header_is_written_as_safetensors_writes_it(path: Path) -> None:
    saved: dict[str, npt.NDArray[Any]] = {
        "fc.weight": np.ones((3, 4), np.float32),
        'née "x"': np.ones(3, np.float64),
        "count": np.array(7, np.int64),
        "flags": np.array([True, False]),
    }
    path.write_bytes(save(saved))
    layout = read_layout(path)
    assert path.read_bytes()[: -data_bytes(layout)] == encode_header(layout)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_whole_numbers_are_always_finite(path: Path, dtype: str) -> None:
    path.write_bytes(save({"a": np.full(9, np.iinfo(dtype).max, dtype)}))
    assert data_bytes(read_layout(path)) == 9 * np.dtype(dtype).itemsize
    check_finite(path)


def test_the_layout_is_in_the_order_of_the_bytes(path: Path) -> None:
    late = {"dtype": "U8", "shape": [2], "data_offsets": [4, 6]}
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [4, 4]}
    path.write_bytes(in_file({"late": late, "empty": empty, "early": GOOD}, bytes(6)))
    assert list(read_layout(path)) == ["early", "empty", "late"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"1234567", "too short"),
        (in_file(b""), "header of 0 bytes"),
        (in_file(b"{"), "header of 1 bytes"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "header of 18446744073709551615 bytes"),
        ((10).to_bytes(8, "little") + b"{}", "header of 10 bytes in a file of 10"),
        (in_file(b" " * (MAX_HEADER_BYTES + 1)), "header of 262145 bytes"),
        (in_file(b'{"\xff": 1}'), "not valid JSON"),
        (in_file(json.dumps({"a": GOOD}).encode("utf-16"), bytes(4)), "not valid JSON"),
        (in_file(b"{]"), "not valid JSON"),
        (in_file(b'{"a": ' * 40_000), "not valid JSON.*recursion"),
        (in_file(b"[" * MAX_HEADER_BYTES), "not valid JSON.*recursion"),
        (in_file({"\ud800": GOOD}, bytes(4)), "not valid JSON.*surrogates"),
        (in_file([GOOD]), "does not start with {"),
        (in_file(b" " + json.dumps({"a": GOOD}).encode(), bytes(4)), "does not start with {"),
        (in_file(b'{"a": 1, "a": 1}'), "'a' is in the header twice"),
        (in_file(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "'dtype' is in the header twice"),
        (in_file(b'{"__metadata__": {}, "__metadata__": {}}'), "'__metadata__' is in the header twice"),
        (in_file(b'{"__metadata__": {"k": "v", "k": "v"}}'), "'k' is in the header twice"),
        (in_file({"a": GOOD, "__metadata__": None}, bytes(4)), "__metadata__ is not"),
        (in_file({"a": GOOD, "__metadata__": ["k"]}, bytes(4)), "__metadata__ is not"),
        (in_file({"a": GOOD, "__metadata__": {"k": 1}}, bytes(4)), "__metadata__ is not"),
        (in_file({"a": GOOD, "__metadata__": {"k": -1}}, bytes(4)), "__metadata__ is not"),
        (in_file({"a": GOOD, "__metadata__": {"k": {}}}, bytes(4)), "__metadata__ is not"),
        (in_file({}), "holds no tensors"),
        (in_file({"__metadata__": {"k": "v"}}), "holds no tensors"),
    ],
    ids=str,
)
def test_a_damaged_header_is_refused(path: Path, content: bytes, message: str) -> None:
    assert_refused(path, content, message)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"more": 1}, "dtype, shape and data_offsets alone"),
        ({"dtype": "F31"}, "dtype is none of BOOL"),
        ({"dtype": "f32"}, "dtype is none of"),
        ({"dtype": ["F32"]}, "dtype is none of"),
        ({"dtype": None}, "dtype is none of"),
        ({"shape": 1}, "shape is not"),
        ({"shape": "1"}, "shape is not"),
        ({"shape": [-1]}, "shape is not"),
        ({"shape": [-1, -1]}, "shape is not"),
        ({"shape": [True]}, "shape is not"),
        ({"shape": [1.0]}, "shape is not"),
        ({"shape": [float("nan")]}, "shape is not"),
        ({"shape": [None]}, "shape is not"),
        ({"shape": [[1]]}, "shape is not"),
        ({"shape": [1] * 9}, "shape is not a list of up to 8"),
        ({"shape": [10**4000]}, "shape is not"),
        ({"shape": [2**63 - 1, 2**63 - 1, 0], "data_offsets": [0, 0]}, "shape is too large"),
        ({"shape": [2**32, 2**32]}, "shape is too large"),
        ({"data_offsets": [0]}, "data_offsets are not"),
        ({"data_offsets": [0, 4, 4]}, "data_offsets are not"),
        ({"data_offsets": [False, 4]}, "data_offsets are not"),
        ({"data_offsets": [-4, 0]}, "data_offsets are not"),
        ({"data_offsets": {"0": 4}}, "data_offsets are not"),
        ({"data_offsets": [0, 3]}, "3 bytes, and its shape takes 4"),
        ({"data_offsets": [4, 0]}, "-4 bytes, and its shape takes 4"),
        ({"shape": []}, None),
        ({"shape": [1] * 8}, None),
    ],
    ids=str,
)
def test_an_entry_is_refused_by_the_name_of_its_tensor(
    path: Path, changed: dict[str, Any], message: str | None
) -> None:
    content = in_file({"fc.weight": GOOD | changed}, bytes(4))
    if message is None:
        path.write_bytes(content)
        assert list(read_layout(path)) == ["fc.weight"]
    else:
        assert_refused(path, content, f"^tensor 'fc.weight': .*{message}")


@pytest.mark.parametrize("missing", GOOD)
def test_an_entry_needs_all_its_fields(path: Path, missing: str) -> None:
    entry = {key: value for key, value in GOOD.items() if key != missing}
    assert_refused(path, in_file({"a": entry}, bytes(4)), "^tensor 'a': not described")


@pytest.mark.parametrize("entry", [None, 1, "F32", [], ["dtype", "shape", "data_offsets"]])
def test_an_entry_is_an_object(path: Path, entry: object) -> None:
    assert_refused(path, in_file({"a": entry}, bytes(4)), "^tensor 'a': not described")


def test_minus_zero_is_no_length(path: Path) -> None:
    header = b'{"a": {"dtype": "F32", "shape": [-0], "data_offsets": [0, 0]}}'
    assert_refused(path, in_file(header), "^tensor 'a': shape is not")


@pytest.mark.parametrize(
    ("second", "data_size", "message"),
    [
        ([5, 9], 9, "tensor 'b' leaves a gap"),
        ([3, 7], 7, "tensor 'b' overlaps"),
        ([0, 4], 4, "tensor 'b' overlaps"),
        ([4, 8], 9, "take 8 bytes, and the file holds 9"),
        ([4, 8], 7, "take 8 bytes, and the file holds 7"),
    ],
)
def test_tensors_fill_the_file(path: Path, second: list[int], data_size: int, message: str) -> None:
    assert_refused(
        path, in_file({"a": GOOD, "b": GOOD | {"data_offsets": second}}, bytes(data_size)), message
    )


def test_a_tensor_has_no_bytes_to_spare(path: Path) -> None:
    content = in_file({"a": GOOD | {"data_offsets": [0, 5]}}, bytes(5))
    assert_refused(path, content, "^tensor 'a': 5 bytes, and its shape takes 4$")


def test_the_first_tensor_lies_at_the_beginning(path: Path) -> None:
    assert_refused(path, in_file({"a": GOOD | {"data_offsets": [1, 5]}}, bytes(5)), "'a' leaves a gap")


def test_a_long_header_is_refused_without_parsing_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object, **__: object) -> None:
        pytest.fail("parsed")

    monkeypatch.setattr(json, "loads", parse)
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(f'"tensor.{number:08}":{entry}' for number in range(300_000)) + "}"
    assert len(header) > 20_000_000
    assert_refused(path, in_file(header.encode()), "header of 20.* bytes")


def test_a_header_of_the_full_length_is_read(path: Path) -> None:
    path.write_bytes(in_file(json.dumps({"a": GOOD}).encode().ljust(MAX_HEADER_BYTES), bytes(4)))
    assert read_layout(path) == {"a": TensorSpec("F32", (1,))}
    assert path.stat().st_size == largest_file(read_layout(path))


def test_messages_stay_short_and_can_be_printed(path: Path) -> None:
    path.write_bytes(in_file({"é\x1b\n" + 100_000 * "x": 1}))
    with pytest.raises(BadTensorsError) as refused:
        read_layout(path)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


LAYOUT = {"fc.weight": TensorSpec("F32", (4, 3)), "fc.bias": TensorSpec("F32", (4,))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fc.weight": TensorSpec("F32", (3, 4))}, r"tensor 'fc.weight': shape \[3, 4\], expected \[4, 3\]"),
        ({"fc.weight": TensorSpec("F64", (4, 3))}, "tensor 'fc.weight': dtype F64, expected F32"),
        ({"fc.scale": TensorSpec("F32", ())}, "tensor 'fc.scale' is not expected"),
    ],
)
def test_another_layout_is_refused(changed: dict[str, TensorSpec], message: str) -> None:
    with pytest.raises(BadTensorsError, match=f"^{message}$"):
        check_same_layout(LAYOUT | changed, LAYOUT)


def test_a_missing_tensor_is_refused() -> None:
    with pytest.raises(BadTensorsError, match=r"^tensor 'fc.bias' is missing$"):
        check_same_layout({"fc.weight": LAYOUT["fc.weight"]}, LAYOUT)


def test_the_order_of_the_tensors_does_not_matter() -> None:
    check_same_layout(dict(reversed(LAYOUT.items())), LAYOUT)


NOT_FINITE = {
    "F16": ("<u2", [0x7C00, 0xFC00, 0x7E00, 0xFFFF, 0x7C01]),
    "BF16": ("<u2", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81]),
    "F32": ("<u4", [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001]),
    "F64": ("<u8", [0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 2**64 - 1, (0x7FF0 << 48) + 1]),
}
FINITE = {
    "F16": [0x7BFF, 0xFBFF, 0x8000, 0x03FF, 0],
    "BF16": [0x7F7F, 0xFF7F, 0x8000, 0x007F, 0],
    "F32": [0x7F7FFFFF, 0xFF7FFFFF, 0x80000000, 0x007FFFFF, 0],
    "F64": [(0x7FF0 << 48) - 1, (0xFFF0 << 48) - 1, 1 << 63, (1 << 52) - 1, 0],
}


def file_of(dtype: str, numbers: npt.NDArray[Any], pad: int = 0) -> bytes:
    """Tensors before and after the one in question; the padding decides how it lies in memory."""
    size = numbers.nbytes
    header = {
        "before": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "layer.weight": {"dtype": dtype, "shape": [numbers.size], "data_offsets": [3, 3 + size]},
        "after": {"dtype": "I16", "shape": [1], "data_offsets": [3 + size, 5 + size]},
    }
    return in_file(json.dumps(header).encode() + pad * b" ", b"\xff" * 3 + numbers.tobytes() + b"\xff\x7f")


@pytest.mark.parametrize("dtype", NOT_FINITE)
def test_infinite_numbers_are_found_wherever_they_are(path: Path, dtype: str) -> None:
    element, patterns = NOT_FINITE[dtype]
    chunk = layout_module._CHUNK_BYTES // np.dtype(element).itemsize
    numbers = np.resize(np.array(FINITE[dtype], element), 2 * chunk + 7)
    path.write_bytes(file_of(dtype, numbers))
    check_finite(path)
    for pattern, position in zip(patterns, [0, chunk - 1, chunk, 2 * chunk, 2 * chunk + 6], strict=True):
        bad = numbers.copy()
        bad[position] = pattern
        path.write_bytes(file_of(dtype, bad))
        with pytest.raises(BadTensorsError, match=r"^tensor 'layer.weight': not all numbers are finite$"):
            check_finite(path)


@pytest.mark.parametrize("dtype", NOT_FINITE)
@pytest.mark.parametrize("pad", range(8))
def test_tensors_may_lie_anywhere_in_memory(path: Path, dtype: str, pad: int) -> None:
    element, patterns = NOT_FINITE[dtype]
    path.write_bytes(file_of(dtype, np.array(FINITE[dtype], element), pad))
    check_finite(path)
    for pattern in patterns:
        path.write_bytes(file_of(dtype, np.array([*FINITE[dtype], pattern], element), pad))
        with pytest.raises(BadTensorsError, match=r"layer\.weight"):
            check_finite(path)


def test_a_damaged_file_is_not_checked_for_finite_numbers(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(BadTensorsError):
        check_finite(path)


@pytest.mark.parametrize(("dtype", "size_bytes"), [("F32", 4), ("BF16", 2)])
def test_large_files_take_little_memory(path: Path, dtype: str, size_bytes: int) -> None:
    entry = {"dtype": dtype, "shape": [2**25 // size_bytes], "data_offsets": [0, 2**25]}
    content = in_file({"a": entry})
    with path.open("wb") as file:
        file.write(content)
        file.truncate(len(content) + 2**25)
    tracemalloc.start()
    try:
        check_finite(path)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


VALID = save({"a": np.ones((2, 3), np.float32), "b": np.ones(2, np.float16), "c": np.array(1)}, {"k": "v"})

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats() | st.text(max_size=5) | st.just("F32"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated_files(draw: st.DrawFn) -> bytes:
    content = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content)) | st.just(len(content)))])


@st.composite
def strange_headers(draw: st.DrawFn) -> bytes:
    lengths = st.lists(st.integers(0, 3), max_size=3)
    plausible = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "U8", "F99"]) | JSON,
            "shape": lengths | JSON,
            "data_offsets": st.tuples(st.integers(0, 12), st.integers(0, 24)) | JSON,
        }
    )
    names = st.sampled_from(["a", "b", "__metadata__"]) | st.text(max_size=3)
    header = draw(st.dictionaries(names, plausible | JSON, max_size=3) | JSON)
    return in_file(header, draw(st.binary(max_size=24)))


@st.composite
def strange_but_valid_files(draw: st.DrawFn) -> bytes:
    names = st.text(max_size=4).filter(lambda name: name != "__metadata__")
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    specs = st.builds(TensorSpec, st.sampled_from(sorted(layout_module._ELEMENT_BYTES)), shapes)
    header: dict[str, object] = {}
    end = 0
    for name, spec in draw(st.dictionaries(names, specs, min_size=1, max_size=4)).items():
        begin, end = end, end + spec.size_bytes
        header[name] = {"shape": spec.shape, "data_offsets": [begin, end], "dtype": spec.dtype}
    header["__metadata__"] = draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
    text = json.dumps(header, ensure_ascii=draw(st.booleans())).encode()
    return in_file(text + draw(st.integers(0, 8)) * b" ", draw(st.binary(min_size=end, max_size=end)))


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=200)
    | st.binary(max_size=60).map(in_file)
    | mutated_files()
    | strange_headers()
    | strange_but_valid_files()
)
def test_any_file_is_refused_or_can_be_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    try:
        layout = read_layout(path)
    except BadTensorsError:
        return
    read = dict(safetensors.deserialize(content))  # type: ignore[no-untyped-call]
    assert {name: (found["dtype"], tuple(found["shape"])) for name, found in read.items()} == {
        name: (spec.dtype, spec.shape) for name, spec in layout.items()
    }
    with suppress(BadTensorsError):
        check_finite(path)


@settings(max_examples=50, deadline=None)
@given(content=strange_but_valid_files())
def test_strange_but_valid_files_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "valid.safetensors"
    path.write_bytes(content)
    assert len(read_layout(path)) == len(safetensors.deserialize(content))  # type: ignore[no-untyped-call]
