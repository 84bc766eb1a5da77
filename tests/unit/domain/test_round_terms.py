"""The terms of a round: taken over from its task when it opens."""

from dataclasses import fields, replace

import pytest

from services.domain.rounds import RoundTerms, terms_of_round
from services.domain.tasks import Dispatch, TaskTerms
from tests.unit.domain.task_terms import ROUND_TERMS, TERMS


def test_a_round_takes_over_the_terms_of_its_task() -> None:
    task = replace(TERMS, round_deadline_s=60.0, selection_s=1.0, aggregation_s=2.0, resource_blocks=3)
    task = replace(task, dispatch=Dispatch.ON_READY, planning_factor=0.8)
    terms = terms_of_round(task, model_size_bytes=1000)
    common = {item.name for item in fields(RoundTerms)} & {item.name for item in fields(TaskTerms)}
    assert len(common) == 14
    assert all(getattr(terms, name) == getattr(task, name) for name in common)


@pytest.mark.parametrize(("set_size_bytes", "scheduled_bytes"), [(None, 1000), (2000, 2000)])
def test_the_size_of_transfers_is_that_of_the_model_unless_set(
    set_size_bytes: int | None, scheduled_bytes: int
) -> None:
    terms = terms_of_round(replace(TERMS, model_size_bytes=set_size_bytes), model_size_bytes=1000)
    assert terms.upload_size_bytes == terms.download_size_bytes == scheduled_bytes


def test_uploads_end_when_aggregation_has_to_begin() -> None:
    assert replace(ROUND_TERMS, aggregation_s=0.1).upload_deadline_ns == 179_900_000_000
    assert replace(ROUND_TERMS, selection_s=5.0).upload_deadline_ns == 180_000_000_000


def test_selection_and_aggregation_are_the_overhead() -> None:
    assert replace(ROUND_TERMS, selection_s=0.1, aggregation_s=0.2).overhead_ns == 300_000_000


def test_a_simulated_round_costs_its_deadline_however_short_it_was() -> None:
    assert ROUND_TERMS.deadline_s == 180.0
    assert ROUND_TERMS.simulated_cost_s(12.5, is_complete=True) == 180.0


def test_the_original_protocol_has_no_deadline_and_costs_what_it_takes() -> None:
    terms = terms_of_round(replace(TERMS, policy="fl"), model_size_bytes=1000)
    assert not terms.has_deadline
    assert terms.upload_deadline_ns is None
    assert terms.deadline_s is None
    assert terms.simulated_cost_s(12.5, is_complete=True) == 12.5
