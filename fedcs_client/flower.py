"""Run an existing Flower ``NumPyClient`` as a device, without changing it.

Flower passes parameters as a list; here every tensor has a name. ``flower_model`` makes the initial model of
a task from a client: its tensors are named ``000``, ``001``, … in the order of the list. Trained tensors get
the type and order of the model's.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from fedcs_client.device import Device, DeviceEvaluation, Parameters, Resources, Trained
from services.contract.assignments import TrainAssignment

Arrays = list[npt.NDArray[Any]]


class NumPyClient(Protocol):
    """The methods of ``flwr.client.NumPyClient`` that are used."""

    def get_parameters(self, config: dict[str, Any]) -> Arrays:
        """The parameters of the client's own network."""

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        """Train; the trained parameters, the number of samples, and metrics."""

    def evaluate(self, parameters: Arrays, config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Evaluate; the loss, the number of samples, and metrics."""


def flower_model(client: NumPyClient) -> bytes:
    """The initial parameters of a client as a safetensors file, for ``PUT /tasks/{task_id}/models/0``."""
    arrays = client.get_parameters({})
    width = max(3, len(str(len(arrays) - 1)))
    # Not np.ascontiguousarray, which gives scalars the shape (1,).
    return save({f"{place:0{width}d}": np.asarray(array, order="C") for place, array in enumerate(arrays)})


def flower_device(
    url: str,
    client_id: str,
    key: str,
    client: NumPyClient,
    *,
    report: Callable[[], Resources],
    evaluates: bool = False,
) -> Device:
    """A device whose updates come from ``client.fit``, with the number of samples that it returns.

    The configuration that ``fit`` gets has ``round_id``, ``model_version`` and the hyperparameters of the
    assignment, such as ``local_epochs`` and ``learning_rate``. With ``evaluates``, ``client.evaluate``
    measures every model; its metrics must have ``accuracy``.
    """

    def train(model: Parameters, assignment: TrainAssignment) -> Trained:
        config = {
            "local_epochs": assignment.local_epochs,
            "batch_size": assignment.batch_size,
            "learning_rate": assignment.learning_rate,
            "gradient_clip_norm": assignment.gradient_clip_norm,
            "local_momentum": assignment.local_momentum,
            "weight_decay": assignment.weight_decay,
            "proximal_mu": assignment.proximal_mu,
            "calibrated_loss": assignment.calibrated_loss,
            "round_id": assignment.round_id,
            "model_version": assignment.model_version,
        }
        arrays, samples, _metrics = client.fit(_listed(model), config)
        names = sorted(model)
        return Trained(
            {name: np.asarray(array, model[name].dtype) for name, array in zip(names, arrays, strict=True)},
            samples,
        )

    def evaluate(model: Parameters) -> DeviceEvaluation:
        loss, samples, metrics = client.evaluate(_listed(model), {})
        return DeviceEvaluation(float(metrics["accuracy"]), float(loss), samples)

    return Device(url, client_id, key, report=report, train=train, evaluate=evaluate if evaluates else None)


def _listed(model: Parameters) -> Arrays:
    return [model[name] for name in sorted(model)]
