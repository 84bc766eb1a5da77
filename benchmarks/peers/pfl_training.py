"""pfl's simulation in two processes, as its documentation starts them.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.peers.pfl_training
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.peers.images import CLIENTS, client_images
from benchmarks.peers.loops import BATCH_SIZE, LEARNING_RATE, optimised, paper_cnn
from benchmarks.peers.turns import Times, Turn, answer, own_output, read_turns


class Network(nn.Module):
    """The network, with the loss as pfl asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = paper_cnn()

    def forward(self, inputs: Tensor) -> Tensor:
        """What it says of some inputs."""
        outputs: Tensor = self.layers(inputs)
        return outputs

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """What is made small."""
        self.train()
        return nn.functional.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """What is measured of each client in the first round: pfl does so whatever is asked for."""
        loss = nn.functional.cross_entropy(self(inputs), labels, reduction="sum")
        return {"loss": Weighted(float(loss), len(labels))}


class TimedAveraging(FederatedAveraging):  # type: ignore[misc]
    """Federated averaging with pfl's own loop or ours, which notes when all clients have trained."""

    trained = 0.0
    turn: Turn

    def train_one_user(
        self, initial_model_state: Any, model: PyTorchModel, user_dataset: Dataset, central_context: Any
    ) -> tuple[Any, Metrics]:
        """One client's update."""
        if self.turn.loop == "straightforward":
            update, metrics = super().train_one_user(
                initial_model_state, model, user_dataset, central_context
            )
            return update, metrics
        inputs, labels = user_dataset.raw_data
        optimised(model.pytorch_model, inputs, labels, self.turn.epochs)
        return model.get_model_difference(initial_model_state), Metrics()

    def process_aggregated_statistics(self, *given: Any, **named: Any) -> tuple[PyTorchModel, Metrics]:
        """Apply the averaged update."""
        self.trained = perf_counter()
        model, metrics = super().process_aggregated_statistics(*given, **named)
        return model, metrics


class Simulation:
    """Everything that lives from round to round; each loop has a model of its own."""

    def __init__(self) -> None:
        self._algorithm = TimedAveraging()
        self._rounds = 0
        self._models: dict[str, PyTorchModel] = {}
        for loop in ("straightforward", "optimised"):
            network = Network()
            self._models[loop] = PyTorchModel(
                network, torch.optim.SGD, central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0)
            )
        sampler = get_user_sampler("minimize_reuse", list(range(CLIENTS)))
        clients = FederatedDataset(self._client, sampler)
        self._backend = SimulatedBackend(training_data=clients, val_data=clients)

    def do_round(self, turn: Turn) -> Times:
        """One round of all clients."""
        self._algorithm.turn = turn
        self._rounds += 1
        terms = NNAlgorithmParams(
            central_num_iterations=self._rounds,
            evaluation_frequency=1_000_000,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        )
        recipe = NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=turn.epochs, local_batch_size=BATCH_SIZE
        )
        began = perf_counter()
        self._algorithm.run(
            algorithm_params=terms,
            backend=self._backend,
            model=self._models[turn.loop],
            model_train_params=recipe,
            send_metrics_to_platform=False,
        )
        return Times(training_s=self._algorithm.trained - began, round_s=perf_counter() - began)

    def _client(self, client: int) -> Dataset:
        return Dataset(raw_data=client_images(client, self._algorithm.turn.samples), user_id=str(client))


def main() -> None:
    """One round for each turn; the first process reads the turns, and tells the other."""
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - what pfl draws clients with; the processes have to agree
    output = own_output()
    simulation = Simulation()
    first = torch.distributed.get_rank() == 0
    for turn in _share(read_turns()) if first else _share(None):
        times = simulation.do_round(turn)
        if first:
            answer(output, times)


def _share(turns: Iterator[Turn] | None) -> Iterator[Turn]:
    while True:
        news = [next(turns, None) if turns else None]
        torch.distributed.broadcast_object_list(news, src=0)
        if news[0] is None:
            return
        yield news[0]


if __name__ == "__main__":
    main()
