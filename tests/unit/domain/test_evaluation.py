"""Evaluations: the scores on all parts of the data become one measure."""

from datetime import UTC, datetime

import pytest

from services.domain.tasks import Evaluation, Score, combine_scores

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_parts_count_by_their_samples() -> None:
    scores = [Score(30, 30, 3.0), Score(10, 0, 17.0), Score(0, 0, 0.0)]
    assert combine_scores(3, scores, NOW) == Evaluation(
        3, accuracy=0.75, loss=0.5, samples=40, evaluated_at=NOW
    )


@pytest.mark.parametrize("diverged", [0, 1, 2])
def test_a_model_that_diverged_on_a_part_has_no_loss(diverged: int) -> None:
    scores = [Score(10, 5, None if part == diverged else 1.0) for part in range(3)]
    found = combine_scores(1, scores, NOW)
    assert (found.accuracy, found.loss) == (0.5, None)


def test_the_loss_is_the_same_in_whatever_order_parts_are_added() -> None:
    scores = [Score(1, 1, loss) for loss in (1e16, 1.0, -1e16)]
    assert (
        combine_scores(1, scores, NOW).loss
        == combine_scores(1, scores[::-1], NOW).loss
        == pytest.approx(1 / 3)
    )
