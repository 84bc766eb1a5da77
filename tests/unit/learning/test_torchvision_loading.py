import subprocess
import sys

from services.learning.datasets import load_datasets


def test_the_data_sets_of_torchvision_are_found() -> None:
    assert load_datasets().__name__ == "torchvision.datasets"
    assert load_datasets() is load_datasets()


def test_operators_that_do_not_fit_do_not_keep_the_data_sets_from_loading() -> None:
    # As with a torchvision for CUDA beside a torch for the CPU: the library of its operators is not loaded.
    program = (
        "import torch\n"
        "def fail(_): raise OSError('libcudart.so: cannot open shared object file')\n"
        "torch.ops.load_library = fail\n"
        "from services.learning.datasets import load_datasets\n"
        "print(load_datasets().CIFAR10.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=120, text=True
    )
    assert done.stdout.strip() == "CIFAR10"
