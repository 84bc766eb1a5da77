"""Encoding an 18.3 MB update on the client, beside ``numpy.copyto`` of it.

python -m benchmarks.encoding
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from safetensors.numpy import save

from benchmarks.timing import median_seconds
from services.tensors.encoded_files import encode_file
from services.tensors.encodings import ENCODINGS, make_encoding

_SHAPES = {
    "conv.1.weight": (32, 3, 3, 3),
    "conv.2.weight": (32, 32, 3, 3),
    "conv.3.weight": (64, 32, 3, 3),
    "conv.4.weight": (64, 64, 3, 3),
    "conv.5.weight": (128, 64, 3, 3),
    "conv.6.weight": (128, 128, 3, 3),
    "dense.1.weight": (512, 8192),
    "dense.2.weight": (192, 512),
    "dense.3.weight": (10, 192),
}
_RUNS = 15


def main() -> None:
    """Print the time of each encoding, and its ratio to that of a copy."""
    rng = np.random.default_rng(0)
    model = {name: rng.normal(0, 0.05, shape).astype("f4") for name, shape in _SHAPES.items()}
    trained = {name: array + rng.normal(0, 0.01, array.shape).astype("f4") for name, array in model.items()}
    received, update = save(model), save(trained)
    numbers = np.concatenate([array.ravel() for array in trained.values()])
    copy = np.empty_like(numbers)
    contenders: dict[str, Callable[[], object]] = {"numpy.copyto": lambda: np.copyto(copy, numbers)}
    for name in ENCODINGS:
        encoding = make_encoding(name, 0.1)
        contenders[name] = partial(encode_file, encoding, update, seed=0, received=received)
    seconds = median_seconds(contenders, _RUNS)
    for name, taken in seconds.items():
        print(f"{name:>12} {1000 * taken:8.1f} ms, speed {seconds['numpy.copyto'] / taken:.3f} of the copy")


if __name__ == "__main__":
    main()
