"""The upper bound for training: two plain PyTorch processes, each training half of the clients.

python -m benchmarks.peers.bare_training
"""

from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter

import torch

from benchmarks.peers.images import CLIENTS, client_images
from benchmarks.peers.loops import LOOPS, paper_cnn
from benchmarks.peers.turns import Times, Turn, answer, own_output, read_turns

_PROCESSES = 2


def main() -> None:
    """Run a round for each request."""
    output = own_output()
    context = get_context("spawn")
    ends = []
    for place in range(_PROCESSES):
        near, far = context.Pipe()
        context.Process(target=_train, args=(far, place), daemon=True).start()
        ends.append(near)
    for turn in read_turns():
        began = perf_counter()
        for end in ends:
            end.send(turn)
        for end in ends:
            end.recv()
        took = perf_counter() - began
        answer(output, Times(training_s=took, round_s=took))
    for end in ends:
        end.send(None)


def _train(turns: Connection, place: int) -> None:
    torch.set_num_threads(1)
    network = paper_cnn()
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    while isinstance(turn := turns.recv(), Turn):
        for client in range(place, CLIENTS, _PROCESSES):
            network.load_state_dict(start)
            LOOPS[turn.loop](network, *client_images(client, turn.samples), turn.epochs)
        turns.send(None)


if __name__ == "__main__":
    main()
