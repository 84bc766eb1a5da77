"""Every difference between our figures and the published ones, in words, with its likely reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client_sim.reproduction.figures import Arrival, RowFigures
from client_sim.reproduction.rows import FINAL_MINUTES, PAPER_TRIALS

REASONS = {
    "radio": "The paper gives no noise figure, and clients placed as it says would be slower than it says; "
    "our cell (1 dB, uniform in distance) is calibrated to its mean throughput.",
    "whole rounds": "We count every round with its full deadline, so our times are multiples of it. Most of "
    "the published ones are not: the authors may have counted rounds to the end of their last upload. Our "
    "times counted that way are in brackets.",
    "network": "The paper's words leave open where batch normalisation stands, how weights begin, how inputs "
    "are scaled, and how batch statistics are averaged; and its network as drawn has a quarter of the "
    "parameters that it states.",
    "averaging": "We weigh clients by their samples, and the learning rate decays by 0.99 per round; the "
    "paper says neither.",
    "few trials": "Published figures are means of ten trials; with fewer, a mean is off by chance.",
    "not over": "Our trials have not been followed as long.",
}
"""Why a figure may differ from the published one."""

_LEARNING = ("whole rounds", "network", "averaging")


@dataclass(frozen=True)
class Difference:
    """A figure of ours beside the published one."""

    what: str
    reasons: Sequence[str]


def differences(figures: RowFigures) -> Iterator[Difference]:
    """All differences of a row."""
    published = figures.published
    few = ["few trials"] if len(figures.runs) < PAPER_TRIALS else []
    if published.clients_per_round is not None:
        ours = figures.clients_per_round.mean
        share = ours / published.clients_per_round - 1
        text = (
            f"{ours:.1f} clients per round where the paper has {published.clients_per_round:g} ({share:+.0%})"
        )
        yield Difference(text, ["radio"])
    for accuracy, minutes in published.minutes_to.items():
        arrival = figures.arrival(accuracy)
        yield Difference(f"accuracy {accuracy:g} {_compared(arrival, minutes)}", _why(arrival, minutes, few))
    final = figures.accuracy_at(FINAL_MINUTES)
    if final is None:
        yield Difference(
            f"no final accuracy: followed for {figures.minutes:g} of {FINAL_MINUTES} minutes "
            f"(the paper ends at {published.final_accuracy:.2f})",
            ["not over"],
        )
    else:
        change = final.mean - published.final_accuracy
        text = (
            f"final accuracy {final.mean:.3f}; the paper has {published.final_accuracy:.2f} ({change:+.3f})"
        )
        yield Difference(text, ["network", "averaging", *few])


def _why(arrival: Arrival, minutes: float | None, few: Sequence[str]) -> Sequence[str]:
    if arrival.whole_rounds is None and max(arrival.never) < (minutes or FINAL_MINUTES):
        return ["not over"]
    return [*_LEARNING, *few]


def _compared(arrival: Arrival, minutes: float | None) -> str:
    ours = arrival.whole_rounds
    if ours is None:
        followed = f"not reached in {max(arrival.never):g} min"
        return (
            f"{followed}, nor in the paper" if minutes is None else f"{followed}; the paper: {minutes:g} min"
        )
    missing = f" ({len(arrival.never)} of {ours.count + len(arrival.never)} trials did not get there)"
    reached = f"after {ours.mean:.1f} min{missing if arrival.never else ''}"
    if minutes is None:
        return f"{reached}; in the paper some trials never got there"
    if round(ours.mean, 1) == minutes:
        return f"{reached}, as in the paper"
    change = ours.mean - minutes
    beside = f"{abs(change):.1f} min {'later' if change > 0 else 'earlier'}"
    return f"{reached}, {beside} than the paper's {minutes:g}"
