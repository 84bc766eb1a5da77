"""A network and a data set as an operator would bring them, by import path."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES = 3


class Line(nn.Module):
    """Tells points in the plane apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(2, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.weights(inputs)
        return outputs


def points(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Points around three centres, which are read from a file."""
    numbers = [float(number) for number in (folder / "centres.txt").read_text().split()]
    centres = torch.tensor(numbers).view(CLASSES, 2)
    torch.manual_seed(1)
    training, validation = (_scatter(centres, count) for count in (300, 90))
    return training, validation


def _scatter(centres: Tensor, count: int) -> TensorDataset:
    labels = torch.arange(count) % CLASSES
    return TensorDataset(centres[labels] + 0.3 * torch.randn(count, 2), labels)
