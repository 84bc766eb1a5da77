"""What states, outcomes and reasons of a round mean, in words."""

from collections.abc import Mapping

from operator_api.dashboard.formats import as_duration, as_moment
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundState, Slot, SlotOutcome
from services.domain.tasks import Task

_STATES: Mapping[RoundState, str] = {
    RoundState.SCHEDULED: "Clients are selected and have their slots; no update has arrived yet.",
    RoundState.COLLECTING: "Updates are arriving.",
    RoundState.AGGREGATING: "Nothing more is accepted; a worker makes the next model from what arrived.",
    RoundState.CANCELLED: "Its task was cancelled, and the round with it.",
}
_REASONS: Mapping[CandidateOutcome, str] = {
    CandidateOutcome.ASKED: "It has been asked for its resources.",
    CandidateOutcome.SELECTED: "It would have been selected, but the round failed.",
    CandidateOutcome.DEADLINE: "With it the round would end too late.",
    CandidateOutcome.NO_DATA: "It holds no samples to train on.",
    CandidateOutcome.NO_REPORT: "It has no fresh report.",
}


def state_text(round_: Round, task: Task) -> str:
    """Where a round is in its life; if it failed, why."""
    if round_.state is RoundState.REQUESTING:
        assert round_.window_ends_at is not None, "it waits for reports"
        return f"Reports are awaited until {as_moment(round_.window_ends_at)}; then clients are selected."
    if round_.state is RoundState.AGGREGATED:
        return f"Version {round_.model_version + 1} of the model was made from {_updates(round_.received)}."
    if round_.state is RoundState.FAILED:
        return _failure(round_, task)
    return _STATES[round_.state]


def candidate_text(candidate: Candidate) -> str:
    """Why a candidate has no slot."""
    if candidate.cost_ns is not None:
        added = as_duration(to_seconds(candidate.cost_ns))
        return f"{_REASONS[candidate.outcome].rstrip('.')}: it adds {added}."
    if candidate.outcome is CandidateOutcome.NO_REPORT and candidate.throughput_bps is not None:
        return "No schedule could be made."
    return _REASONS[candidate.outcome]


def slot_text(slot: Slot) -> str:
    """What became of a slot, and why."""
    at = "" if slot.elapsed_s is None else as_duration(slot.elapsed_s)
    if slot.outcome is SlotOutcome.RECEIVED:
        return f"Its update arrived at {at}."
    if slot.outcome is SlotOutcome.LATE:
        return f"Its update came at {at}, too late."
    if slot.outcome is SlotOutcome.REJECTED and at:
        return f"Its update arrived at {at} and was left out of the model: {slot.last_rejection}"
    if slot.rejections:
        times = "once" if slot.rejections == 1 else f"{slot.rejections} times"
        return f"It sent {times} what was no acceptable update: {slot.last_rejection}"
    if slot.outcome is SlotOutcome.MISSED:
        return "Nothing came."
    return "Its update is awaited."


def _failure(round_: Round, task: Task) -> str:
    terms = task.terms
    texts = {
        "TOO_FEW_CLIENTS": f"Too few clients could be selected: the task needs {terms.min_clients} at least.",
        "TOO_FEW_UPDATES": f"Too few updates could be used: {round_.received}, and the task needs "
        f"{terms.min_updates} at least.",
        "SCHEDULE_TOO_LONG": "The schedule would take longer than any schedule may.",
        "IDLE_TIMEOUT": f"Nothing was heard from its clients for {as_duration(terms.idle_timeout_s)}.",
        "AGGREGATION_FAILED": "No worker could make the model from what arrived; their logs say why.",
    }
    return texts.get(round_.outcome or "", "")


def _updates(number: int) -> str:
    return f"{number} update{'' if number == 1 else 's'}"
