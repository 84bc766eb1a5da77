"""Samples to learn from: images or other inputs, and the class of each."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Inputs, one after another, and their labels. Images of bytes are kept so, for a quarter of the room."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DataSet:
    """What devices train on, and what the global model is measured on."""

    training: Samples
    validation: Samples
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.training.inputs.shape[1:])

    def prepare(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Inputs as a network takes them; bytes are put on the scale of the training data, by channel."""
        if inputs.dtype == torch.uint8:
            mean, deviation = self._scale
            inputs = (inputs.to(torch.float32) - mean) / deviation
        if inputs.dim() == 4:
            return inputs.to(device, memory_format=torch.channels_last)
        return inputs.to(device)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, counted from the 256 values that a byte can have."""
        levels = torch.arange(256, dtype=torch.float64)
        moments = []
        for channel in self.training.inputs.unbind(1):
            shares = torch.bincount(channel.reshape(-1), minlength=256) / channel.numel()
            mean = (shares * levels).sum()
            deviation = (shares * (levels - mean) ** 2).sum().sqrt().clamp_min(1.0)
            moments.append(torch.stack([mean, deviation]))
        by_channel = torch.stack(moments, 1).to(torch.float32)
        mean, deviation = by_channel.reshape(2, -1, *[1] * (self.training.inputs.dim() - 2))
        return mean, deviation
