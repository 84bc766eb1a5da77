"""A network that trains and is aggregated in no time, though in several runs over its numbers."""

from torch import nn

TINY = "tests.faults.tiny_network:make_tiny_network"


def make_tiny_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16, 256), nn.ReLU(), nn.Linear(256, 10))
