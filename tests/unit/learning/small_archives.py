"""Small files in the formats of CIFAR-10 and Fashion-MNIST, and a server to download them from."""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learning.datasets import load_datasets

CIFAR = "cifar-10"
FASHION = "fashion-mnist"
CIFAR_FILES = [
    *(f"cifar-10-batches-py/data_batch_{n}" for n in range(1, 6)),
    "cifar-10-batches-py/test_batch",
]
CIFAR_META = "cifar-10-batches-py/batches.meta"
FASHION_FILES = [
    f"FashionMNIST/raw/{part}-{content}-ubyte"
    for part in ("train", "t10k")
    for content in ("images-idx3", "labels-idx1")
]
FILES = {CIFAR: [*CIFAR_FILES, CIFAR_META], FASHION: FASHION_FILES}


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def make_cifar(folder: Path, archive: Path, patch: pytest.MonkeyPatch) -> None:
    """Five times four training images and four to validate on; torchvision is told their checksums."""
    rng = np.random.default_rng(1)
    contents = {
        name: pickle.dumps(
            {"data": rng.integers(0, 256, (4, 3072), np.uint8), "labels": rng.integers(10, size=4).tolist()}
        )
        for name in CIFAR_FILES
    }
    contents[CIFAR_META] = pickle.dumps({"label_names": [f"class {n}" for n in range(10)]})
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(folder / "cifar-10-batches-py", "cifar-10-batches-py")
    (archive / "cifar-10-python.tar.gz").write_bytes(packed.getvalue())
    kind = load_datasets().CIFAR10
    sums = [[Path(name).name, _md5(contents[name])] for name in CIFAR_FILES]
    patch.setattr(kind, "train_list", sums[:5])
    patch.setattr(kind, "test_list", sums[5:])
    patch.setattr(kind, "meta", {**kind.meta, "md5": _md5(contents[CIFAR_META])})
    patch.setattr(kind, "tgz_md5", _md5(packed.getvalue()))


def make_fashion(folder: Path, archive: Path, patch: pytest.MonkeyPatch) -> None:
    """Twelve training images and six to validate on; torchvision is told their checksums."""
    rng = np.random.default_rng(2)
    resources = []
    for name in FASHION_FILES:
        shape = (12 if "train" in name else 6, *((28, 28) if "images" in name else ()))
        numbers = rng.integers(0, 256 if "images" in name else 10, shape, np.uint8)
        content = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape) + numbers.tobytes()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        packed = gzip.compress(content)
        (archive / f"{path.name}.gz").write_bytes(packed)
        resources.append((f"{path.name}.gz", _md5(packed)))
    patch.setattr(load_datasets().FashionMNIST, "resources", resources)


class _Server(ThreadingHTTPServer):
    def __init__(self, archive: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(archive)))
        self.asked_for: list[str] = []
        self.all_came = threading.Event()


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.asked_for.append(self.path)
        self.server.all_came.wait(30)  # so that whoever downloads at the same time does
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(ConnectionError):  # torchvision asks twice, and reads the second answer only
            super().copyfile(source, outputfile)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(archive: Path, patch: pytest.MonkeyPatch, *, wait: bool = False) -> Iterator[_Server]:
    """Let torchvision download from here; with ``wait``, not before ``all_came`` is set."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        patch.delenv(name, raising=False)
    with _Server(archive) as server:
        if not wait:
            server.all_came.set()
        address = f"http://127.0.0.1:{server.server_port}/"
        patch.setattr(load_datasets().CIFAR10, "url", f"{address}cifar-10-python.tar.gz")
        patch.setattr(load_datasets().FashionMNIST, "mirrors", [address])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.all_came.set()
            server.shutdown()
            thread.join()
