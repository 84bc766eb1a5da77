"""Which reported figures are implausible."""

import numpy as np
import pytest

from services.domain.plausibility import (
    MIN_FLEET,
    FleetRange,
    ImplausibleFigure,
    ImplausibleReason,
    PlausibleLimits,
)
from services.domain.radio import Cell, RadioModel
from services.domain.resources import ResourceReports

PEAK_BPS = RadioModel().peak_throughput_bps


def _reports(throughput_bps: list[float], compute: list[float]) -> ResourceReports:
    return ResourceReports(np.array(throughput_bps), np.array(compute), np.full(len(compute), 100))


def test_the_peak_rate_is_that_of_the_best_modulation() -> None:
    assert PEAK_BPS == 8_640_000
    assert RadioModel(resource_blocks=5, max_bits_per_hz=2.0).peak_throughput_bps == 1_800_000


def test_a_fleet_needs_some_reports() -> None:
    few = _reports([1e6] * (MIN_FLEET - 1), [50.0] * (MIN_FLEET - 1))
    assert FleetRange.of(few) is None
    assert FleetRange.of(_reports([], [])) is None
    assert FleetRange.of(_reports([1e6] * MIN_FLEET, [50.0] * MIN_FLEET)) == FleetRange(1e7, 500.0)


def test_no_client_of_the_paper_s_cell_is_implausible() -> None:
    reports = Cell().draw_reports(1000, np.random.default_rng(0))
    fleet = FleetRange.of(reports)
    assert fleet is not None
    found = PlausibleLimits(np.full(1000, PEAK_BPS), fleet).find(reports)
    assert not any(found)


def test_a_quarter_of_the_fleet_cannot_move_its_range_far() -> None:
    honest = Cell().draw_reports(1000, np.random.default_rng(0))
    boasts = np.where(np.arange(1000) < 200, 100.0, 1.0)
    boasted = ResourceReports(
        honest.throughput_bps, honest.compute_samples_per_s * boasts, honest.data_samples
    )
    fleet = FleetRange.of(boasted)
    assert fleet is not None
    found = PlausibleLimits(np.full(1000, PEAK_BPS), fleet).find(boasted)
    assert sum(map(bool, found[:200])) > 100
    assert not any(found[200:])


@pytest.mark.parametrize("fleet", [None, FleetRange(5e6, 100.0)])
def test_above_the_peak_rate_of_the_cell(fleet: FleetRange | None) -> None:
    reports = _reports([PEAK_BPS, PEAK_BPS * (1 + 1e-12), PEAK_BPS * 100, 4e6], [50.0] * 4)
    found = PlausibleLimits(np.array([PEAK_BPS, PEAK_BPS, PEAK_BPS, 3e6]), fleet).find(reports)
    peak = ImplausibleReason.PEAK_RATE
    assert found[2] == [ImplausibleFigure("throughput_bps", peak, PEAK_BPS * 100, PEAK_BPS)]
    assert found[3] == [ImplausibleFigure("throughput_bps", peak, 4e6, 3e6)]
    expected = [] if fleet is None else [ImplausibleReason.FLEET_RANGE]
    assert [[figure.reason for figure in row] for row in found[:2]] == [expected, expected]


def test_far_above_the_other_clients() -> None:
    limits = PlausibleLimits(np.array([PEAK_BPS, PEAK_BPS]), FleetRange(1e6, 500.0))
    found = limits.find(_reports([2e6, 1e6], [501.0, 500.0]))
    range_ = ImplausibleReason.FLEET_RANGE
    assert found == [
        [
            ImplausibleFigure("throughput_bps", range_, 2e6, 1e6),
            ImplausibleFigure("compute_samples_per_s", range_, 501.0, 500.0),
        ],
        [],
    ]


def test_implausible_figures_are_reduced_to_the_limits_and_others_stay() -> None:
    reports = _reports([1e9, 1e6, 1e5], [50.0, 1e6, 50.0])
    peaks = np.full(3, PEAK_BPS)
    without_fleet = PlausibleLimits(peaks, None).cap(reports)
    assert without_fleet.throughput_bps.tolist() == [PEAK_BPS, 1e6, 1e5]
    assert without_fleet.compute_samples_per_s.tolist() == [50.0, 1e6, 50.0]
    with_fleet = PlausibleLimits(peaks, FleetRange(5e5, 500.0)).cap(reports)
    assert with_fleet.throughput_bps.tolist() == [5e5, 5e5, 1e5]
    assert with_fleet.compute_samples_per_s.tolist() == [50.0, 500.0, 50.0]


def test_a_fleet_of_extremes_has_no_limit() -> None:
    fleet = FleetRange.of(_reports([1e-300] * 20 + [1e17] * 20, [1.0] * 40))
    assert fleet is not None
    assert fleet.throughput_bps == float("inf")
