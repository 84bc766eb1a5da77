"""Evaluation of a global model on one part of the validation data."""

import math
from collections.abc import Callable

import torch
from torch import nn

from services.domain.tasks import Score
from services.learning.datasets import DataSet
from services.learning.devices import to_device

_BATCH = 200


def evaluate(
    network: nn.Module,
    data: DataSet,
    *,
    part: int,
    parts: int,
    device: torch.device,
    after_batch: Callable[[float], None],
) -> Score:
    """Evaluate one of ``parts`` equal parts of the validation data; ``after_batch`` as in local updates."""
    total = len(data.validation)
    indices = torch.arange(total * part // parts, total * (part + 1) // parts)
    to_device(network, device).eval()
    correct, loss, done = 0, 0.0, 0
    with torch.inference_mode():
        for batch in (
            torch.split(indices, _BATCH) if len(indices) else ()
        ):  # split returns one empty part for an empty tensor
            outputs = network(data.prepare(data.validation.inputs[batch], device))
            labels = data.validation.labels[batch].to(device)
            correct += int((outputs.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
            done += len(batch)
            after_batch(done / len(indices))
    return Score(samples=len(indices), correct=correct, loss_sum=loss if math.isfinite(loss) else None)
