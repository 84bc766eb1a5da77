import numpy as np
import pytest

from services.domain.radio import RadioModel


@pytest.mark.parametrize("radio", [RadioModel(), RadioModel(carrier_ghz=3.5, resource_blocks=25)])
def test_the_distance_is_that_whose_throughput_it_is(radio: RadioModel) -> None:
    distances = np.array([300.0, 500.0, 1000.0, 2000.0, 20_000.0])
    throughputs = radio.throughput_bps(radio.snr_db(radio.path_loss_db(distances)))
    assert radio.distance_m(throughputs) == pytest.approx(distances)


def test_one_bit_per_hz_by_hand() -> None:
    # 1 bit/s/Hz takes an SNR of 0 dB above the loss of 1.6 dB; noise is -174 + 62.553 + 1 dBm.
    loss_db = 20 + 174 - 62.55273 - 1 - 1.6
    distance = 10 ** ((loss_db - 22.7 - 26 * 0.3979400) / 36.7)
    assert RadioModel().distance_m(np.array([1.8e6])) == pytest.approx(distance, rel=1e-4)


def test_at_the_ceiling_all_are_at_its_distance() -> None:
    radio = RadioModel()
    at_ceiling, above, below = radio.distance_m(np.array([8.64e6, 1e15, 8.63e6]))
    assert at_ceiling == above < below
    assert radio.throughput_bps(radio.snr_db(radio.path_loss_db(np.array([at_ceiling])))) == pytest.approx(
        8.64e6
    )
