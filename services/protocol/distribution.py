"""Distribution (step 4 of Protocol 2 in the paper): selected clients fetch the global model."""

from datetime import datetime

from services.domain.rounds import UPLOAD_STATES, RoundState, SlotOutcome
from services.errors import NotSelectedError
from services.protocol.transitions import lock_round, move_round
from services.storage.database import Store
from services.storage.models import ModelVersion


def get_round_model(store: Store, round_id: str, client_id: str | None) -> tuple[ModelVersion, bool]:
    """The round's model, for a selected client or the operator (none); and whether collection begins."""
    round_ = store.rounds.get(round_id)
    slot = None if client_id is None else store.rounds.slot(round_.serial, client_id)
    if client_id is not None and slot is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    begins = slot is not None and round_.state is RoundState.SCHEDULED
    return store.models.get(round_.task_serial, round_.model_version), begins


def begin_collection(store: Store, round_id: str, now: datetime) -> None:
    """Start collection when the first selected client fetches the model."""
    _, round_ = lock_round(store, round_id)
    if round_.state is RoundState.SCHEDULED:
        move_round(store, round_, RoundState.COLLECTING, now, active_at=now)


def record_model_fetched(store: Store, round_id: str, client_id: str, now: datetime) -> None:
    """Record that a client has downloaded the model; its update time counts from here."""
    _, round_ = lock_round(store, round_id)
    slot = store.rounds.slot(round_.serial, client_id)
    if round_.state in UPLOAD_STATES and slot is not None and slot.outcome is SlotOutcome.PENDING:
        store.rounds.change_slot(round_.serial, client_id, model_fetched_at=now)
        store.rounds.change(round_, active_at=now)
