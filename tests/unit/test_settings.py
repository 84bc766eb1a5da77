"""Settings that contradict each other are refused, by name."""

from pathlib import Path

import pytest

from services.errors import SettingsError
from services.settings import Settings, load_settings

KEY = "test-operator-key-3f9c1b7a52d8e604"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"report_min_throughput_bps": 0}, "FEDCS_REPORT_MIN_THROUGHPUT_BPS: .*greater than 0"),
        ({"report_min_throughput_bps": "nan"}, "FEDCS_REPORT_MIN_THROUGHPUT_BPS: "),
        (
            {"report_max_throughput_bps": 99},
            "FEDCS_REPORT_MAX_THROUGHPUT_BPS: .*below FEDCS_REPORT_MIN_THROUGHPUT_BPS, 100",
        ),
        (
            {"report_min_compute_samples_per_s": 1e8},
            "FEDCS_REPORT_MAX_COMPUTE_SAMPLES_PER_S: .*below FEDCS_REPORT_MIN_COMPUTE_SAMPLES_PER_S, 1e\\+08",
        ),
        ({"report_max_data_samples": 0}, "FEDCS_REPORT_MAX_DATA_SAMPLES: .*greater than or equal to 1"),
    ],
)
def test_limits_of_reports_that_leave_nothing_are_refused(
    tmp_path: Path, given: dict[str, object], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_settings(Settings, operator_key=KEY, data_dir=tmp_path, **given)
