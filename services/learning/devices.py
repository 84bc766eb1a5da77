"""Which device a worker's process computes on."""

import os

import torch
from torch import nn

from services.errors import SettingsError


def choose_device(wanted: str | None, place: int = 0) -> torch.device:
    """The wanted kind of device, or the best there is; among several GPUs, the one at this ``place``."""
    kind = wanted or _best()
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise SettingsError("FEDCS_DEVICE: no CUDA device can be used; set it to cpu, or mend the driver")
        return torch.device("cuda", place % torch.cuda.device_count())
    if kind == "mps" and not torch.backends.mps.is_available():
        raise SettingsError("FEDCS_DEVICE: there is no MPS device here; set it to cpu")
    return torch.device(kind)


def processes_for(device: torch.device) -> int:
    """How many processes use a machine well: one for each GPU, else one for each core it may use."""
    if device.type == "cuda":
        return torch.cuda.device_count()
    if device.type == "mps":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def to_device(network: nn.Module, device: torch.device) -> nn.Module:
    """Put a network on a device, its images with the channels last: half as fast again on a CPU."""
    return nn.utils.convert_conv2d_weight_memory_format(network.to(device), torch.channels_last)


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
