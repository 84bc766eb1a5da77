"""Evaluation: how good a global model is on the validation data, part by part."""

import math
from collections.abc import Callable

import torch
from torch import nn

from services.domain.evaluation import Score
from services.learning.devices import to_device
from services.learning.samples import DataSet

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
    """Measure one of ``parts`` equal parts of the validation data; ``after_batch`` as in the local update."""
    total = len(data.validation)
    places = torch.arange(total * part // parts, total * (part + 1) // parts)
    to_device(network, device).eval()
    correct, loss, done = 0, 0.0, 0
    with torch.inference_mode():
        for batch in torch.split(places, _BATCH) if len(places) else ():  # split makes one of nothing, too
            outputs = network(data.prepare(data.validation.inputs[batch], device))
            labels = data.validation.labels[batch].to(device)
            correct += int((outputs.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
            done += len(batch)
            after_batch(done / len(places))
    return Score(samples=len(places), correct=correct, loss_sum=loss if math.isfinite(loss) else None)
