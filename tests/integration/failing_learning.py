"""A network and a data set that fail on some hosts: which, the environment says at that moment."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

MODULE = "tests.integration.failing_learning"
NETWORK = f"{MODULE}:make_network"
DATASET = f"{MODULE}:read_points"
MORE_THAN_ALL_MEMORY = 10**15

reads: list[Path] = []
"""From where the data set was read, or was to be."""


def make_network() -> nn.Module:
    """One that needs more memory than there is, if the host is said to have little."""
    if "TEST_OUT_OF_MEMORY" in os.environ:
        torch.empty(MORE_THAN_ALL_MEMORY)
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))


def read_points(folder: Path) -> Any:
    """Points of two classes, from a file in the folder."""
    reads.append(folder)
    centre = float((folder / "centre.txt").read_text())
    points = [(torch.tensor([[sign * centre, 1.0]]), int(sign > 0)) for sign in (-1, 1)] * 20
    return points, points
