"""A network so small that half an hour of models and updates fits on a small disk."""

from torch import nn

SMALL = "tests.faults.chaos.small_network:make_small_network"


def make_small_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16, 16), nn.ReLU(), nn.Linear(16, 10))
