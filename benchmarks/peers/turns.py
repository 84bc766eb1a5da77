"""Taking turns: a contender lives in a process of its own and does one round for each line it reads.

So contenders can be interleaved, and starting them is not part of a round.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True)
class Turn:
    """What a round trains: with which loop, on how many samples of each client, how often.

    ``evaluates``: whether the model is measured as part of the round, where that can be left out.
    """

    loop: str
    samples: int
    epochs: int
    evaluates: bool = False


@dataclass(frozen=True)
class Times:
    """How long clients trained, and how long the round took in all; some evaluate the model after it."""

    training_s: float
    round_s: float
    evaluation_s: float = 0.0


def own_output() -> TextIO:
    """Where to answer; whatever else is printed goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def read_turns() -> Iterator[Turn]:
    """The turns asked for, until there are no more."""
    for line in sys.stdin:
        yield Turn(**json.loads(line))


def answer(output: TextIO, times: Times) -> None:
    """Tell how long a turn took."""
    output.write(json.dumps(asdict(times)) + "\n")
