"""Throughput from the radio measurements that terminals report."""

import pytest

from services.domain.radio import RadioModel, throughput_from_rsrp, throughput_from_sinr


def test_a_reported_sinr_is_in_steps_of_half_a_decibel() -> None:
    """At an SINR of 1.5 dB (step 50), which the loss takes away, a bit goes through each second and Hz."""
    radio = RadioModel(snr_loss_db=1.5)
    assert throughput_from_sinr(radio, 50) == pytest.approx(1.8e6)
    assert throughput_from_sinr(radio, 1) == pytest.approx(9.198e3, rel=0.001)
    assert 0 < throughput_from_sinr(radio, 0) < throughput_from_sinr(radio, 1)
    assert throughput_from_sinr(radio, 127) == 8.64e6
    assert throughput_from_sinr(RadioModel(snr_loss_db=1.5, resource_blocks=5), 50) == pytest.approx(0.9e6)


def test_a_reported_rsrp_tells_the_loss_on_the_way() -> None:
    """-90 dBm of 18.2 dBm sent: 108.2 dB are lost, so 20 dBm arrive at -88.2, 22.2 dB above the noise."""
    noise_dbm = -174 + 62.5527 + 1
    snr_db = 20 - 108.2 - noise_dbm
    radio = RadioModel(snr_loss_db=snr_db)
    assert throughput_from_rsrp(radio, 51) == pytest.approx(1.8e6, rel=1e-4)
    assert throughput_from_rsrp(radio, 50) < throughput_from_rsrp(radio, 51) < throughput_from_rsrp(radio, 52)
    assert throughput_from_rsrp(RadioModel(), 97) == 8.64e6
    assert throughput_from_rsrp(RadioModel(), 0) > 0
