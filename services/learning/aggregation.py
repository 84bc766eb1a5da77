"""Aggregation: many updates become the next global model (section IV-A of the paper).

A run of some thousand numbers is read from every update, averaged, and written into the new model; then the
next run. So memory does not depend on the number of clients. They are taken in slot order, so the result is
the same bit for bit whoever arrived first. Sums are kept in double precision.

Everything in a model file takes part. The running statistics of batch normalisation are averaged as the
parameters are; counters, which are whole numbers, become the rounded average (docs/adr/0012).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.learning.outliers import Norms, TensorKind, find_outliers, kind_of
from services.learning.rules.rule import Rule
from services.learning.tensor_file import Run, TensorFile, new_buffer, new_tensors, plan_runs, write_run

_MOST_OPEN = 256
"""Files that are held open; a process may not have many more than a thousand."""


@dataclass(frozen=True)
class Contribution:
    """An update that was accepted: whose it is, where its file is, and how many samples it speaks for."""

    client_id: str
    path: Path
    data_samples: int


@dataclass(frozen=True)
class Aggregated:
    """The next global model, unless no update was left; and who was left out, with the reason."""

    tensors: dict[str, Tensor] | None
    left_out: Mapping[str, str]


def aggregate(
    model: Path,
    contributions: Sequence[Contribution],
    rule: type[Rule],
    *,
    max_norm: float | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Aggregated:
    """Combine the updates, each step shortened to ``max_norm``; those out of all proportion are left out."""
    whole = _Combination(model, contributions, rule, [1.0] * len(contributions))
    tensors = whole.tensors(progress)
    left_out = find_outliers(whole.norms(), whole.model_norms())
    longest = max_norm or math.inf
    shares = {
        client_id: min(1.0, longest / norms.parameters) if norms.parameters else 1.0
        for client_id, norms in whole.norms().items()
    }
    if not left_out and min(shares.values()) == 1.0:
        return Aggregated(tensors, {})
    rest = [given for given in contributions if given.client_id not in left_out]
    if not rest:
        return Aggregated(None, left_out)
    again = _Combination(model, rest, rule, [shares[given.client_id] for given in rest])
    return Aggregated(again.tensors(progress), left_out)


class _Combination:
    """Goes through all updates once; finds on the way how long the steps of the clients are."""

    def __init__(
        self, model: Path, contributions: Sequence[Contribution], rule: type[Rule], shares: Sequence[float]
    ) -> None:
        self._model = TensorFile(model)
        self._clients = [given.client_id for given in contributions]
        self._files = [TensorFile(given.path) for given in contributions]
        self._rule = rule([given.data_samples for given in contributions])
        self._shares = shares
        """Which part of its step each client takes."""
        self._squares = {kind: [0.0] * len(contributions) for kind in TensorKind}
        self._own_squares = dict.fromkeys(TensorKind, 0.0)

    def tensors(self, progress: Callable[[float], None]) -> dict[str, Tensor]:
        """The combination."""
        specs = self._model.specs
        combined = new_tensors(specs)
        runs = list(plan_runs(specs, {name: kind_of(name) for name in specs}))
        own_buffer, buffer = new_buffer(), new_buffer()
        with ExitStack() as opened:
            for file in self._files[:_MOST_OPEN]:
                opened.enter_context(file)
            for place, run in enumerate(runs, 1):
                own = self._model.read(run, own_buffer)
                self._own_squares[run.kind] += _square(own.to(torch.float32))
                write_run(run, self._rule.combine(self._values(run, own, buffer)), combined)
                progress(place / len(runs))
        return combined

    def norms(self) -> dict[str, Norms]:
        """How far each client moves the model."""
        return {
            client_id: _norms({kind: squares[place] for kind, squares in self._squares.items()})
            for place, client_id in enumerate(self._clients)
        }

    def model_norms(self) -> Norms:
        """How long the model itself is."""
        return _norms(self._own_squares)

    def _values(self, run: Run, own: Tensor, buffer: bytearray) -> Iterator[Tensor]:
        """What each client has in this run."""
        squares = self._squares[run.kind]
        # Made once, for it takes longer to find room than to fill it. To measure, single precision will do.
        exact, step = (torch.empty(run.numbers, dtype=dtype) for dtype in (torch.float64, torch.float32))
        exact_own, rough_own = own.to(torch.float64), own.to(torch.float32)
        for place, (file, share) in enumerate(zip(self._files, self._shares, strict=True)):
            given = file.read(run, buffer)
            squares[place] += _square(torch.sub(given.to(torch.float32), rough_own, out=step))
            if run.kind is TensorKind.VARIANCES and bool((given < 0).any()):
                squares[place] = math.inf  # there is no such variance
            exact.copy_(given)
            yield exact if share == 1.0 else exact_own.lerp(exact, share)


def _norms(squares: Mapping[TensorKind, float]) -> Norms:
    return Norms(
        math.sqrt(squares[TensorKind.PARAMETERS]),
        math.sqrt(squares[TensorKind.MEANS] + squares[TensorKind.VARIANCES]),
    )


def _square(numbers: Tensor) -> float:
    return float(numbers.dot(numbers))
