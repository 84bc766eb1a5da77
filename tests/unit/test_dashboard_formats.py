"""How numbers and lines are written on pages."""

from datetime import datetime, timedelta, timezone

import pytest

from operator_api.dashboard.rendering import as_duration, as_moment, as_percent
from operator_api.dashboard.task_list import polyline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0125, "0.0125 s"),
        (2.5, "2.5 s"),
        (60, "1 min"),
        (61.4, "1 min 1 s"),
        (24000, "6 h 40 min"),
        (3600, "1 h"),
        (86400 + 60, "1 d"),
        (90000 * 7, "7 d 7 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert as_duration(seconds) == text


def test_percentages_and_moments() -> None:
    assert as_percent(0.5312) == "53.1 %"
    assert as_percent(1) == "100.0 %"
    in_aalborg = datetime(2026, 1, 1, 0, 30, 59, 999, tzinfo=timezone(timedelta(hours=1)))
    assert as_moment(in_aalborg) == "2025-12-31 23:30:59 UTC"


def test_a_line_from_left_to_right_from_nothing_to_all() -> None:
    assert polyline([0.0, 1.0]) == "2.0,26.0 118.0,2.0"
    assert polyline([0.5]) == "2.0,14.0 2.0,14.0"
    assert polyline([]) == ""
