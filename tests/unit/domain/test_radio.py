import numpy as np
import pytest

from services.domain.radio import Cell, Placement, RadioModel, place_clients


def test_path_loss_snr_and_throughput_by_hand() -> None:
    radio = RadioModel(noise_figure_db=0.0)
    loss = radio.path_loss_db(np.array([100.0]))
    assert loss == pytest.approx(36.7 * 2 + 22.7 + 26 * 0.3979400)
    snr = radio.snr_db(loss)
    assert snr == pytest.approx(20 - 106.4464 + 174 - 62.55273, abs=1e-3)
    assert radio.throughput_bps(np.array([1.6])) == pytest.approx(1.8e6)  # 1 bit/s/Hz
    assert radio.throughput_bps(np.array([60.0])) == pytest.approx(8.64e6)


def test_paper_preset_meets_the_published_throughput() -> None:
    rng = np.random.default_rng(0)
    means = [Cell().draw_reports(1000, rng).throughput_bps.mean() for _ in range(200)]
    assert np.mean(means) == pytest.approx(1.4e6, abs=0.05e6)
    assert Cell().draw_reports(100_000, rng).throughput_bps.max() == 8.64e6


def test_uniform_in_area_is_far_below() -> None:
    radio = RadioModel(noise_figure_db=0.0)
    reports = Cell(radio, Placement.AREA).draw_reports(200_000, np.random.default_rng(0))
    assert reports.throughput_bps.mean() == pytest.approx(0.34e6, abs=0.01e6)


@pytest.mark.parametrize(
    ("placement", "median"), [(Placement.DISTANCE, 1000), (Placement.AREA, 2000 / 2**0.5)]
)
def test_placement(placement: Placement, median: float) -> None:
    distances = place_clients(100_000, placement, np.random.default_rng(0))
    assert np.median(distances) == pytest.approx(median, rel=0.01)
    assert distances.min() >= 10
    assert distances.max() <= 2000


def test_shadow_fading_spreads_the_throughput_and_is_off_in_the_preset() -> None:
    rng = np.random.default_rng(0)
    assert not RadioModel().shadow_fading(100, rng).any()
    fading = RadioModel(shadow_fading_db=4.0).shadow_fading(100_000, rng)
    assert fading.mean() == pytest.approx(0, abs=0.05)
    assert fading.std() == pytest.approx(4.0, rel=0.02)


def test_the_same_seed_gives_the_same_cell() -> None:
    first, same = (Cell().draw_reports(50, np.random.default_rng(3)) for _ in range(2))
    assert first.throughput_bps.tolist() == same.throughput_bps.tolist()
    assert first.data_samples.tolist() == same.data_samples.tolist()
    assert first.data_samples.min() >= 100
    assert first.data_samples.max() <= 1000
