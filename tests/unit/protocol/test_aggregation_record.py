"""What is recorded with the model of a round: each update's influence, medians, the aggregator's state."""

import pytest

from services.domain.clipping import PAST_ROUNDS, AggregationRecord, StepNorms, StepScales, UpdateInfluence
from services.domain.jobs import Job, JobKind
from services.domain.rounds import Round, RoundState
from services.errors import DataSamplesError
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.resource_request import open_round
from services.protocol.upload import UploadTiming, admit_upload, check_samples
from services.storage.database import UnitOfWork
from services.storage.model_store import Blob
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND, UPDATE

RECORD = AggregationRecord(
    StepNorms(1.5, 0.5),
    {
        "a": UpdateInfluence(StepNorms(1.5, 0.5), 100, StepScales()),
        "b": UpdateInfluence(StepNorms(6.0, 2.0), 300, StepScales(0.5, 0.25)),
    },
)


def _aggregating(uow: UnitOfWork, round_: Round) -> Job:
    """The job of a round in which everybody has uploaded."""
    for slot in uow.rounds.slots(round_.serial):
        factories.received_update(uow, round_, slot.client_id)
    close_round(uow, round_.round_id, NOW)
    (job,) = [job for job in uow.jobs.to_publish(NOW, SECOND * 0, 99) if job.kind is JobKind.AGGREGATE_ROUND]
    claimed = uow.jobs.claim(job.job_id, NOW, SECOND)
    assert claimed is not None
    return claimed


def test_the_slots_say_what_each_update_did_to_the_model(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", "c")
    job = _aggregating(uow, round_)
    record = AggregationRecord(RECORD.medians, RECORD.influences, {"c": "too far"})
    assert finish_aggregation(uow, job, UPDATE, record, NOW)
    slots = {slot.client_id: slot for slot in uow.rounds.slots(round_.serial)}
    b, c = slots["b"], slots["c"]
    assert (b.weight, b.update_norm, b.statistics_norm) == (300, 6.0, 2.0)
    assert (b.update_scale, b.statistics_scale) == (0.5, 0.25)
    assert (slots["a"].weight, slots["a"].update_scale, slots["a"].statistics_scale) == (100, 1.0, 1.0)
    assert (c.weight, c.update_norm, c.update_scale) == (None, None, None)
    over = uow.rounds.get(round_.round_id)
    assert over.state is RoundState.AGGREGATED
    assert (over.median_update_norm, over.median_statistics_norm) == (1.5, 0.5)


def test_the_limits_of_a_round_know_the_medians_of_the_last_ones(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    for number in range(1, PAST_ROUNDS + 3):
        past = uow.rounds.past_norms(round_)
        first = max(number - PAST_ROUNDS, 1)
        assert past == [StepNorms(float(item), 0.5) for item in range(number - 1, first - 1, -1)]
        record = AggregationRecord(StepNorms(float(number), 0.5), RECORD.influences)
        assert finish_aggregation(uow, _aggregating(uow, round_), UPDATE, record, NOW)
        round_ = open_round(uow, round_.task_id, NOW)


def test_a_round_that_failed_has_no_medians(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", min_updates=2)
    record = AggregationRecord(RECORD.medians, {"a": RECORD.influences["a"]}, {"b": "too far"})
    assert finish_aggregation(uow, _aggregating(uow, round_), UPDATE, record, NOW)
    assert uow.rounds.get(round_.round_id).state is RoundState.FAILED
    assert uow.rounds.past_norms(open_round(uow, round_.task_id, NOW)) == []


def test_the_last_two_states_of_the_aggregator_are_kept_beside_the_model(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    states = [Blob(str(number) * 64, 9) for number in range(1, 5)]
    for state in states:
        assert finish_aggregation(uow, _aggregating(uow, round_), UPDATE, RECORD, NOW, state=state)
        round_ = open_round(uow, round_.task_id, NOW)
    kept = [uow.models.get(round_.task_serial, version).state_digest for version in range(5)]
    assert kept == [None, None, None, states[2].digest, states[3].digest]
    digests = [state.digest for state in states]
    assert uow.models.referenced(digests) == set(digests[2:])
    # A model without state is followed by no state.
    assert finish_aggregation(uow, _aggregating(uow, round_), MODEL, RECORD, NOW)
    assert uow.models.get(round_.task_serial, 5).state_digest is None


def test_no_update_claims_more_samples_than_its_client_reported(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    expected = admit_upload(uow, round_.round_id, "a", UploadTiming(NOW, elapsed_s=1.0))
    for fewer in (1, 100):
        check_samples(expected, fewer)
    with pytest.raises(DataSamplesError, match="Fedcs-Data-Samples is 101, and the client reported 100"):
        check_samples(expected, 101)
