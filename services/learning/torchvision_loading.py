"""Loading torchvision where its compiled operators do not fit the torch that is installed.

A torchvision built for CUDA beside a torch for the CPU cannot load its operators, and then fails on import
because it describes two of them. Declared beforehand, they only fail if they are called; data sets never do.
"""

from functools import cache
from types import ModuleType

import torch

_OPERATORS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def load_datasets() -> ModuleType:
    """The module ``torchvision.datasets``."""
    try:
        import torchvision  # noqa: F401, PLC0415
    except RuntimeError:
        for name, schema in _OPERATORS.items():
            torch.library.define(name, schema)
    from torchvision import datasets  # noqa: PLC0415

    module: ModuleType = datasets
    return module
