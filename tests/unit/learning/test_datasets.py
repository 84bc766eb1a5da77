import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import NoReturn

import numpy as np
import pytest
import torch

from services.errors import DataSetError, DataSetUnavailableError, ImportRefusedError
from services.learning.datasets import DataSet, load_dataset
from tests.unit.learning import custom_parts
from tests.unit.learning.digests import digest
from tests.unit.learning.small_archives import (
    CIFAR,
    CIFAR_META,
    FASHION,
    FASHION_FILES,
    FILES,
    make_cifar,
    make_fashion,
    serving,
)

CUSTOM = custom_parts.__name__
PACKED = Path(__file__).parents[4] / "shared" / "datasets"
VALIDATION_IMAGES = {CIFAR: FILES[CIFAR][5], FASHION: FILES[FASHION][2]}
EACH_FILE = [(name, file) for name, files in FILES.items() for file in files]

pytestmark = pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted tar archives")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Each test reads anew, and leaves no data in memory."""
    load_dataset.cache_clear()
    yield
    load_dataset.cache_clear()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two data sets as they are published."""
    if given := os.environ.get("FEDCS_DATASETS"):
        return Path(given)
    if not PACKED.is_dir():
        pytest.skip("no data sets: FEDCS_DATASETS is not set, and there is no ../shared/datasets")
    folder = tmp_path_factory.mktemp("datasets")
    subprocess.run(
        [sys.executable, PACKED / "unpack.py", folder], check=True, timeout=120, stdout=subprocess.DEVNULL
    )
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name can be looked up, whether there is a network or not."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files of both data sets; packed for download, they are in ``archive`` beside it."""
    folder, archive = tmp_path / "small", tmp_path / "archive"
    archive.mkdir()
    make_cifar(folder, archive, monkeypatch)
    make_fashion(folder, archive, monkeypatch)
    return folder


def contents(data: DataSet) -> str:
    return digest(
        {
            "inputs": torch.cat([data.training.inputs, data.validation.inputs]),
            "labels": torch.cat([data.training.labels, data.validation.labels]),
        }
    )


def first_bytes(path: Path, skip: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    with path.open("rb") as file:
        file.seek(skip)
        return np.frombuffer(file.read(count), np.uint8)


@pytest.mark.usefixtures("offline")
def test_fashion_mnist_as_it_is_published(real: Path) -> None:
    data = load_dataset(FASHION, real)
    assert data.classes == 10
    assert data.training.inputs.shape == (60_000, 1, 28, 28)
    assert data.validation.inputs.shape == (10_000, 1, 28, 28)
    for samples in (data.training, data.validation):
        assert samples.inputs.dtype == torch.uint8
        assert samples.labels.dtype == torch.int64
        assert torch.bincount(samples.labels).tolist() == [len(samples) // 10] * 10
    raw = real / "FashionMNIST" / "raw"
    pixels = first_bytes(raw / "t10k-images-idx3-ubyte", 16, 3 * 784).reshape(3, 1, 28, 28)
    assert np.array_equal(data.validation.inputs[:3].numpy(), pixels)
    labels = first_bytes(raw / "t10k-labels-idx1-ubyte", 8, 100)
    assert np.array_equal(data.validation.labels[:100].numpy(), labels)


@pytest.mark.usefixtures("offline")
def test_cifar_10_as_it_is_published(real: Path) -> None:
    data = load_dataset(CIFAR, real)
    assert data.classes == 10
    assert data.training.inputs.shape == (50_000, 3, 32, 32)
    assert data.validation.inputs.shape == (10_000, 3, 32, 32)
    for samples in (data.training, data.validation):
        assert samples.inputs.dtype == torch.uint8
        assert samples.inputs.is_contiguous()
        assert samples.labels.dtype == torch.int64
        assert torch.bincount(samples.labels).tolist() == [len(samples) // 10] * 10
    # In the file, an image is its red, green and blue plane, one row of pixels after another.
    assert (
        data.training.inputs[0].flatten().numpy().tobytes()
        in (real / "cifar-10-batches-py" / "data_batch_1").read_bytes()
    )


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("name", "counts"), [(CIFAR, (20, 4)), (FASHION, (12, 6))])
def test_files_that_are_there_need_no_network(small: Path, name: str, counts: tuple[int, int]) -> None:
    data = load_dataset(name, small)
    assert (len(data.training), len(data.validation)) == counts
    for samples, file in ((data.training, FILES[name][0]), (data.validation, VALIDATION_IMAGES[name])):
        assert samples.inputs[0].numpy().tobytes() in (small / file).read_bytes()
    assert load_dataset(name, small) is data


def test_the_generated_data_set_needs_no_folder(tmp_path: Path) -> None:
    assert load_dataset("generated", tmp_path / "absent").classes == 10


def test_an_unknown_data_set_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        DataSetError, match="'mnist'; there are generated, cifar-10, fashion-mnist, and your own as package"
    ):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize("name", [CIFAR, FASHION, f"{CUSTOM}:rows"])
@pytest.mark.parametrize("is_file", [False, True])
def test_without_the_folder_the_setting_is_named(tmp_path: Path, name: str, is_file: bool) -> None:
    folder = tmp_path / "elsewhere"
    if is_file:
        folder.touch()
    with pytest.raises(
        DataSetUnavailableError, match=r"elsewhere' for data sets is not there; set FEDCS_DATASETS to one"
    ):
        load_dataset(name, folder, ("tests",))


def assert_unreadable(name: str, folder: Path) -> str:
    with pytest.raises(DataSetUnavailableError) as refused:
        load_dataset(name, folder)
    message = str(refused.value)
    assert message.startswith(f"{name} cannot be read from {str(folder)!r}")
    assert message.endswith("put its files there, or set FEDCS_DATASETS to a folder that has them")
    return message


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", [CIFAR, FASHION])
def test_without_files_and_network_both_reasons_are_told(tmp_path: Path, name: str) -> None:
    message = assert_unreadable(name, tmp_path)
    assert "Dataset not found" in message
    assert "Name or service not known" in message


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("name", "file"), EACH_FILE)
@pytest.mark.parametrize("fault", ["missing", "empty", "half"])
def test_no_file_may_be_missing_or_cut_off(small: Path, name: str, file: str, fault: str) -> None:
    content = (small / file).read_bytes()
    (small / file).unlink()
    if fault != "missing":
        (small / file).write_bytes(content[: len(content) // 2 if fault == "half" else 0])
    assert_unreadable(name, small)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("file", FILES[CIFAR])
def test_a_file_with_a_wrong_checksum_is_not_read(small: Path, file: str) -> None:
    content = bytearray((small / file).read_bytes())
    content[-9] ^= 1
    (small / file).write_bytes(content)
    assert "corrupted" in assert_unreadable(CIFAR, small)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("file", FASHION_FILES)
@pytest.mark.parametrize("header", [b"\0\0\x09", b"\0\0\x0d", b"\0\0\xff", b"\x1f\x8b\x08", b"<ht"])
def test_a_file_of_another_kind_is_not_read(small: Path, file: str, header: bytes) -> None:
    content = (small / file).read_bytes()
    (small / file).write_bytes(header + content[3:])
    assert_unreadable(FASHION, small)


@pytest.mark.usefixtures("offline")
def test_images_and_labels_may_not_change_places(small: Path) -> None:
    images, labels = (small / file for file in FASHION_FILES[:2])
    swapped = labels.read_bytes()
    shutil.copy(images, labels)
    images.write_bytes(swapped)
    assert_unreadable(FASHION, small)


@pytest.mark.parametrize("name", [CIFAR, FASHION])
def test_what_is_not_there_is_downloaded_once(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = contents(load_dataset(name, small))
    folder = tmp_path / "datasets"
    folder.mkdir()
    with serving(tmp_path / "archive", monkeypatch) as server:
        assert contents(load_dataset(name, folder)) == expected
        assert len(server.asked_for) == 2 * len(set(server.asked_for)) > 0
    load_dataset.cache_clear()
    assert contents(load_dataset(name, folder)) == expected


def test_a_damaged_cifar_10_is_downloaded_anew(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(load_dataset(CIFAR, small))
    load_dataset.cache_clear()
    (small / CIFAR_META).write_bytes(b"")
    (small / "cifar-10-batches-py" / "test_batch").unlink()
    with serving(tmp_path / "archive", monkeypatch):
        assert contents(load_dataset(CIFAR, small)) == expected


@pytest.mark.parametrize("name", [CIFAR, FASHION])
def test_a_download_that_comes_damaged_is_not_used(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.rmtree(small)
    small.mkdir()
    for packed in (tmp_path / "archive").iterdir():
        packed.write_bytes(packed.read_bytes()[:-1])
    with serving(tmp_path / "archive", monkeypatch):
        assert "not found or corrupted" in assert_unreadable(name, small)


@pytest.mark.parametrize("name", [CIFAR, FASHION])
def test_processes_that_need_the_same_files_at_once_do_not_write_into_each_others(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = contents(load_dataset(name, small))
    folder = tmp_path / "datasets"
    folder.mkdir()
    read: Callable[[str, Path], DataSet] = load_dataset.__wrapped__  # each process has a cache of its own
    with serving(tmp_path / "archive", monkeypatch, wait=True) as server, ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read, name, folder) for _ in range(4)]
        sleep(0.5)  # all of them have seen by now that there are no files
        server.all_came.set()
        assert {contents(data.result(60)) for data in reading} == {expected}
        assert len(server.asked_for) == 2 * len(set(server.asked_for)) > 0


def test_a_data_set_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("0 1 1")
    data = load_dataset(f"{CUSTOM}:rows", tmp_path, ("tests",))
    assert data.input_shape == (4,)
    assert torch.equal(data.training.inputs, torch.arange(12.0).view(3, 4))
    assert data.training.labels.tolist() == [0, 1, 1]
    assert data.validation.labels.tolist() == [2]
    assert data.training.labels.dtype == torch.int64
    assert data.classes == 3  # one of them among the validation data only


def test_a_data_set_of_ones_own_has_to_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(ImportRefusedError, match="FEDCS_ALLOWED_IMPORTS"):
        load_dataset(f"{CUSTOM}:rows", tmp_path)


def test_a_data_set_of_ones_own_whose_files_are_missing_is_for_another_host(tmp_path: Path) -> None:
    with pytest.raises(
        DataSetUnavailableError, match=r"fails' cannot be read from .*where is .*train\.csv\?"
    ):
        load_dataset(f"{CUSTOM}:fails", tmp_path, ("tests",))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("three_parts", "ValueError: too many values"),
        ("no_labels", "ValueError"),
        ("labels_in_words", "ValueError: invalid literal for int"),
        ("unequal_shapes", "RuntimeError: stack expects each tensor to be equal size"),
        ("no_inputs", "TypeError"),
        ("empty", "RuntimeError"),
        ("nothing", "TypeError"),
        ("Perceptron", "TypeError"),
    ],
)
def test_what_makes_no_data_set_is_refused_with_advice(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(
        DataSetError, match=f"{name}' must return two data sets, for training and validation.*{reason}"
    ):
        load_dataset(f"{CUSTOM}:{name}", tmp_path, ("tests",))
