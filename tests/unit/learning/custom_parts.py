"""Networks and data sets as a user would bring them, good ones and others."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

MEASURED_ON_IMPORT = torch.rand(3)  # as some modules do
NOT_CALLABLE = 5


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


class WithArguments(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1)


def no_network() -> str:
    return "a network"


def rows(folder: Path) -> tuple[TensorDataset, list[tuple[Tensor, int]]]:
    """The labels come out of a file; the validation data know a class more."""
    labels = torch.tensor([int(label) for label in (folder / "labels.txt").read_text().split()])
    return TensorDataset(torch.arange(12.0).view(-1, 4), labels), [(torch.ones(4), 2)]


def three_parts(_: Path) -> tuple[list[Any], ...]:
    item = (torch.ones(4), 0)
    return [item], [item], [item]


def no_labels(_: Path) -> tuple[list[Any], ...]:
    return [torch.ones(4)], [torch.ones(4)]


def labels_in_words(_: Path) -> tuple[list[Any], ...]:
    return [(torch.ones(4), "cat")], [(torch.ones(4), "dog")]


def unequal_shapes(_: Path) -> tuple[list[Any], ...]:
    return [(torch.ones(4), 0), (torch.ones(5), 0)], [(torch.ones(4), 0)]


def no_inputs(_: Path) -> tuple[list[Any], ...]:
    return [("a picture", 0)], [("a picture", 0)]


def empty(_: Path) -> tuple[list[Any], ...]:
    return [], []


def nothing(_: Path) -> None:
    return None


def fails(folder: Path) -> None:
    raise FileNotFoundError(f"where is {folder / 'train.csv'}?")
