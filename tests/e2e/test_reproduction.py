"""``fedcs reproduce``, killed and run again, on images that look like Fashion-MNIST to torchvision."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.fork_server import ModulePopen
from tests.integration.rounds_setup import eventually

TRIAL = ["--dataset", "fashion-mnist", "--setting", "iid", "--round-minutes", "1", "--until", "2min"]
SAMPLES = {"train": 1500, "t10k": 100}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in SAMPLES.items():
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        images = rng.integers(0, 80, (count, 28, 28), dtype=np.uint8) + labels[:, None, None] * np.uint8(16)
        _write_idx(raw / f"{part}-images-idx3-ubyte", images)
        _write_idx(raw / f"{part}-labels-idx1-ubyte", labels)
    return folder


def _write_idx(path: Path, numbers: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in numbers.shape)
    path.write_bytes(bytes([0, 0, 8, numbers.ndim]) + sizes + numbers.tobytes())


def start(folder: Path, datasets: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "operator_api", "reproduce", *TRIAL, *options]
    command += ["--results", str(folder / "results.jsonl"), "--work-dir", str(folder / "service")]
    environment = os.environ | {"FEDCS_DATASETS": str(datasets)}
    return ModulePopen[str](
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def results(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("task_id", "wall_s")} for line in lines]


def has_line(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def clients(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "service" / "fedcs.sqlite")) as database:
        (number,) = database.execute("SELECT count(*) FROM clients").fetchone()
        return int(number)


@pytest.mark.long
def test_a_trial_that_was_killed_goes_on_and_ends_with_the_same_numbers(
    tmp_path: Path, datasets: Path
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    finish(start(undisturbed, datasets))
    assert len(results(undisturbed)) == 2

    process = start(killed, datasets)
    eventually(lambda: has_line(killed / "results.jsonl") or None)
    time.sleep(0.5)  # in the middle of the second round
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(results(killed)) == 1
    assert clients(killed) == 1000
    finish(start(killed, datasets))
    assert results(killed) == results(undisturbed)
    for folder in (undisturbed, killed):
        assert clients(folder) == 0

    assert "All trials are done" in finish(start(killed, datasets))
    assert "done" in finish(start(killed, datasets, "--list"))

    (killed / "results.jsonl").write_text("")
    refused = start(killed, datasets)
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "the work directory has 2 rounds, but the results file has 0" in output
