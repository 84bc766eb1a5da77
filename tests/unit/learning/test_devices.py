import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from services.errors import SettingsError
from services.learning.devices import choose_device, processes_for, to_device
from tests.unit.learning.digests import digest

CPU = torch.device("cpu")


def test_the_cpu_can_be_chosen_whatever_else_there_is() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device("cpu", index=3) == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_to_use_cuda_is_refused_with_advice() -> None:
    with pytest.raises(
        SettingsError, match=r"FEDCS_DEVICE: no CUDA device.*set it to cpu, or repair the driver"
    ):
        choose_device("cuda")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an MPS device here")
def test_mps_is_refused_where_there_is_none() -> None:
    with pytest.raises(SettingsError, match=r"FEDCS_DEVICE: no MPS device.*set it to cpu"):
        choose_device("mps")


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU here"
)
def test_the_best_there_is_without_a_gpu_is_the_cpu() -> None:
    assert choose_device(None) == CPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_processes_share_the_gpus() -> None:
    count = torch.cuda.device_count()
    chosen = [choose_device(None, place).index for place in range(2 * count)]
    assert chosen == [*range(count), *range(count)]
    assert processes_for(torch.device("cuda", 0)) == count


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away on this system")
def test_one_process_for_each_core_that_may_be_used() -> None:
    assert processes_for(CPU) == len(os.sched_getaffinity(0))
    core = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{core}])\n"
        "import torch; from services.learning.devices import processes_for\n"
        "print(processes_for(torch.device('cpu')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=120, text=True
    )
    assert int(done.stdout) == 1


def test_one_process_for_mps() -> None:
    assert processes_for(torch.device("mps")) == 1


def test_networks_keep_their_parameters_and_get_channels_last() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    before = digest(network.state_dict())
    moved = to_device(network, CPU)
    weight = moved.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert digest(moved.state_dict()) == before


def test_networks_of_other_dimensions_can_be_used_too() -> None:
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.LazyLinear(2))
    assert to_device(network, CPU)(torch.ones(5, 1, 4, 4, 4)).shape == (5, 2)
    assert to_device(nn.Conv1d(1, 2, 3), CPU)(torch.ones(5, 1, 4)).shape == (5, 2, 2)
