"""Selected clients fetch the model of their round."""

import pytest

from services.domain.rounds import RoundState
from services.errors import NotSelectedError, RoundNotFoundError
from services.protocol.aggregation import close_round
from services.protocol.distribution import begin_collection, get_round_model, record_model_fetched
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND


def test_the_first_selected_client_begins_the_collection(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    model, begins = get_round_model(uow, round_.round_id, "a")
    assert (model.digest, begins) == (MODEL.digest, True)
    for _ in range(2):
        begin_collection(uow, round_.round_id, NOW + SECOND)
        collecting = uow.rounds.get(round_.round_id)
        assert (collecting.state, collecting.active_at) == (RoundState.COLLECTING, NOW + SECOND)
    assert get_round_model(uow, round_.round_id, "b")[1] is False


def test_the_operator_gets_the_model_and_begins_nothing(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    model, begins = get_round_model(uow, round_.round_id, None)
    assert (model.digest, begins) == (MODEL.digest, False)


def test_a_client_that_was_not_selected_gets_no_model(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    factories.clients(uow, "b")
    with pytest.raises(NotSelectedError, match="'b'"):
        get_round_model(uow, round_.round_id, "b")
    with pytest.raises(RoundNotFoundError):
        get_round_model(uow, "nothing", "a")


def test_the_download_is_noted_while_the_update_is_awaited(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    record_model_fetched(uow, round_.round_id, "a", NOW + SECOND)
    record_model_fetched(uow, round_.round_id, "stranger", NOW + 2 * SECOND)
    slots = uow.rounds.slots_of(round_.serial, ["a", "b"])
    assert (slots["a"].model_fetched_at, slots["b"].model_fetched_at) == (NOW + SECOND, None)
    assert uow.rounds.get(round_.round_id).active_at == NOW + SECOND
    close_round(uow, round_.round_id, NOW)
    record_model_fetched(uow, round_.round_id, "b", NOW + 3 * SECOND)
    begin_collection(uow, round_.round_id, NOW + 3 * SECOND)
    assert uow.rounds.slots_of(round_.serial, ["b"])["b"].model_fetched_at is None
    assert uow.rounds.get(round_.round_id).state is RoundState.FAILED
