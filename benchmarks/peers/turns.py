"""The protocol between the training benchmark and its child processes: a line of JSON for each round.

So the rounds of several frameworks can be interleaved, and start-up is not part of a round.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True)
class Turn:
    """A round: the training loop, the samples of each client, the epochs, whether to evaluate the model."""

    loop: str
    samples: int
    epochs: int
    evaluates: bool = False


@dataclass(frozen=True)
class Times:
    """The times of a round; some frameworks evaluate the model after it."""

    training_s: float
    round_s: float
    evaluation_s: float = 0.0


def own_output() -> TextIO:
    """The stream for results; redirects other output to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def read_turns() -> Iterator[Turn]:
    """The requested rounds, until the input ends."""
    for line in sys.stdin:
        yield Turn(**json.loads(line))


def answer(output: TextIO, times: Times) -> None:
    """Send the times of a round."""
    output.write(json.dumps(asdict(times)) + "\n")
