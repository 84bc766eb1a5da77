"""Model files for tests of aggregation, and what it should make of them, computed plainly in 64 bits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load, save_file
from torch import Tensor

from services.aggregators.aggregation import ReceivedUpdate
from services.tensors.blocks import ModelBuffer

COUNTER = "bn.num_batches_tracked"
MEAN = "bn.running_mean"
VARIANCE = "bn.running_var"


class ModelFiles:
    """Writes files into a folder; an update is told by what it adds to the model."""

    def __init__(self, folder: Path, model: Mapping[str, Tensor]) -> None:
        self._folder = folder
        self.tensors = dict(model)
        self.model = folder / "model"
        save_file(self.tensors, self.model)

    def update(self, client_id: str, tensors: Mapping[str, Tensor], data_samples: int = 1) -> ReceivedUpdate:
        path = self._folder / f"update-{client_id}"
        save_file(dict(tensors), path)
        return ReceivedUpdate(client_id, path, data_samples)

    def step(self, client_id: str, data_samples: int = 1, **steps: Tensor | float) -> ReceivedUpdate:
        """An update that moves the tensors of these names (``__`` for a dot), and leaves the others."""
        moves = {name.replace("__", "."): step for name, step in steps.items()}
        assert moves.keys() <= self.tensors.keys()
        tensors = {
            name: (tensor + moves.get(name, 0)).to(tensor.dtype) for name, tensor in self.tensors.items()
        }
        return self.update(client_id, tensors, data_samples)


def small_model(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "fc.weight": torch.randn(6, 5, generator=generator),
        "fc.bias": torch.randn(6, generator=generator),
        "scale": torch.tensor(0.5),
        MEAN: torch.randn(6, generator=generator),
        VARIANCE: torch.rand(6, generator=generator) + 0.5,
        COUNTER: torch.tensor(10),
    }


def loaded(model: ModelBuffer | None) -> dict[str, Tensor]:
    """The tensors of a model that was made."""
    assert model is not None
    return load(b"".join(model.content()))


def average(updates: Sequence[Tensor], weights: Sequence[float]) -> npt.NDArray[np.float64]:
    arrays = [update.to(torch.float64).numpy() for update in updates]
    averaged: npt.NDArray[np.float64] = np.average(np.stack(arrays), axis=0, weights=weights)
    return averaged


def write_in_order(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file whose tensors lie in the order given; ``save_file`` would sort them."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().flatten().numpy().tobytes()
        dtype = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
