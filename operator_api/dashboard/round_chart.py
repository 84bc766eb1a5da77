"""What the chart of a round is drawn from: columns, so that a hundred slots are few bytes."""

from collections.abc import Sequence

from operator_api.dashboard.round_page_view import PER_PAGE
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Round, Slot
from services.domain.tasks import TaskTerms
from services.storage.database import Database
from services.storage.round_lists import fate_of


def load_chart(database: Database, round_id: str) -> dict[str, object]:
    """A round's times and its first slots; names and units are those of ``GET /rounds/{round_id}``."""
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        terms = store.tasks.get(round_.task_id).terms
        slots = [one.slot for one in store.round_lists.selected(round_, PER_PAGE, 0)]
    return {
        "state": round_.state.value,
        "is_open": round_.is_open,
        "clock": terms.clock.value,
        "now": database.now().isoformat(),
        "started_at": None if round_.started_at is None else round_.started_at.isoformat(),
        "duration_s": round_.duration_s,
        "selected": round_.selected,
        **_terms(round_, terms),
        "slots": _columns(slots),
    }


def _terms(round_: Round, terms: TaskTerms) -> dict[str, object]:
    return {
        "round_deadline_s": terms.round_deadline_s if terms.has_deadline else None,
        "selection_s": terms.selection_s,
        "aggregation_s": terms.aggregation_s,
        "distribution_s": to_seconds(round_.distribution_ns or 0),
        "elapsed_s": to_seconds(round_.elapsed_ns or 0),
    }


def _columns(slots: Sequence[Slot]) -> dict[str, list[object]]:
    return {
        "client_id": [one.client_id for one in slots],
        "order": [one.order for one in slots],
        "fate": [fate_of(one) for one in slots],
        "update_s": [to_seconds(one.update_ns) for one in slots],
        "upload_s": [to_seconds(one.upload_ns) for one in slots],
        "window_start_s": [to_seconds(one.window_start_ns) for one in slots],
        "window_end_s": [to_seconds(one.window_end_ns) for one in slots],
        "elapsed_s": [one.elapsed_s for one in slots],
        "actual_update_s": [one.actual_update_s for one in slots],
        "actual_upload_s": [one.actual_upload_s for one in slots],
    }
