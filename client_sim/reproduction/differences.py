"""The differences between our figures and the published ones, with their likely reasons."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client_sim.reproduction.figures import RowFigures, TimeToAccuracy
from client_sim.reproduction.rows import FINAL_MINUTES, PAPER_TRIALS

REASONS = {
    "radio": "The paper gives no noise figure, and its placement gives lower throughput than it states; "
    "our cell (1 dB, uniform in distance) is calibrated to its mean throughput.",
    "whole rounds": "Our times count every round with its full deadline, so they are multiples of it. Most "
    "published times are not: the authors may have counted rounds to the end of their last upload. Our times "
    "counted that way are in brackets.",
    "network": "The paper does not specify the position of batch normalisation, the initial weights, the "
    "scaling of inputs, or the averaging of batch statistics. The network as drawn has a quarter of the "
    "stated parameters.",
    "averaging": "We weight clients by their samples, and the learning rate decays by 0.99 per round; the "
    "paper specifies neither.",
    "few trials": "Published figures are means of ten trials; fewer trials have a larger random error.",
    "not finished": "Our trials have not run as long.",
}
"""Why a figure may differ from the published figure."""

_LEARNING = ("whole rounds", "network", "averaging")


@dataclass(frozen=True)
class Difference:
    """A difference between our figure and the published figure."""

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
        times = figures.time_to_accuracy(accuracy)
        yield Difference(
            f"accuracy {accuracy:g} {_compared(times, minutes)}",
            _why(times, minutes, few),
        )
    final = figures.accuracy_at(FINAL_MINUTES)
    if final is None:
        yield Difference(
            f"no final accuracy: ran for {figures.minutes:g} of {FINAL_MINUTES} minutes "
            f"(the paper ends at {published.final_accuracy:.2f})",
            ["not finished"],
        )
    else:
        change = final.mean - published.final_accuracy
        text = (
            f"final accuracy {final.mean:.3f}; the paper has {published.final_accuracy:.2f} ({change:+.3f})"
        )
        yield Difference(text, ["network", "averaging", *few])


def _why(times: TimeToAccuracy, minutes: float | None, few: Sequence[str]) -> Sequence[str]:
    if times.whole_rounds is None and max(times.never) < (minutes or FINAL_MINUTES):
        return ["not finished"]
    return [*_LEARNING, *few]


def _compared(times: TimeToAccuracy, minutes: float | None) -> str:
    ours = times.whole_rounds
    if ours is None:
        not_reached = f"not reached in {max(times.never):g} min"
        return (
            f"{not_reached}, nor in the paper"
            if minutes is None
            else f"{not_reached}; the paper: {minutes:g} min"
        )
    missing = f" ({len(times.never)} of {ours.count + len(times.never)} trials did not reach it)"
    reached = f"after {ours.mean:.1f} min{missing if times.never else ''}"
    if minutes is None:
        return f"{reached}; in the paper some trials never reached it"
    if round(ours.mean, 1) == minutes:
        return f"{reached}, as in the paper"
    change = ours.mean - minutes
    beside = f"{abs(change):.1f} min {'later' if change > 0 else 'earlier'}"
    return f"{reached}, {beside} than the paper's {minutes:g}"
