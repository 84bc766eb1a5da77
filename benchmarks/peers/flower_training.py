"""Flower's simulation: ten clients on two Ray actors of one core each.

python -m benchmarks.peers.flower_training
"""

from collections.abc import Iterable
from functools import cache
from time import perf_counter

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.images import CLIENTS, client_images
from benchmarks.peers.loops import LOOPS, paper_cnn
from benchmarks.peers.turns import Times, answer, own_output, read_turns

_ACTORS = 2

client_app = ClientApp()
server_app = ServerApp()


class TimedAveraging(FedAvg):  # type: ignore[misc]
    """Federated averaging that records when it requests training and when all replies are there."""

    asked = answered = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Request training."""
        self.asked = perf_counter()
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies."""
        self.answered = perf_counter()
        replies = list(replies)
        assert len(replies) == CLIENTS
        assert not any(reply.has_error() for reply in replies), "a client failed"
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays, metrics


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Train a client."""
    config = message.content["config"]
    network = paper_cnn()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = client_images(int(context.node_config["partition-id"]), config["samples"])
    LOOPS[config["loop"]](network, inputs, labels, config["epochs"])
    content = RecordDict(
        {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


@client_app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on a single image, to measure the overhead only."""
    network = paper_cnn()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = client_images(int(context.node_config["partition-id"]), 1)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(network.eval()(inputs), labels)
    metrics = MetricRecord({"num-examples": len(labels), "loss": loss.item()})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, _: Context) -> None:
    """Run a round for each request."""
    arrays = ArrayRecord(paper_cnn().state_dict())
    output = answers()
    for turn in read_turns():
        strategy = TimedAveraging(
            fraction_evaluate=1.0 if turn.evaluates else 0.0,
            min_train_nodes=CLIENTS,
            min_available_nodes=CLIENTS,
        )
        config = ConfigRecord({"loop": turn.loop, "samples": turn.samples, "epochs": turn.epochs})
        began = perf_counter()
        arrays = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1, train_config=config).arrays
        round_s = perf_counter() - began
        answer(output, Times(training_s=strategy.answered - strategy.asked, round_s=round_s))


answers = cache(own_output)

if __name__ == "__main__":
    torch.set_num_threads(1)
    answers()
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": _ACTORS, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
