import pytest

from client_sim.load_test import LoadSettings
from services.errors import SettingsError


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = LoadSettings()
    assert (settings.clients, settings.duration_s, settings.model_bytes) == (5000, 120, 1_000_000)
    assert settings.scenario().task.request_fraction == 0.1


def test_clients_are_spread_over_the_cells_that_are_asked_for() -> None:
    assert LoadSettings().scenario().cells == []
    cells = LoadSettings(cells=3).scenario().cells
    assert [cell.cell_id for cell in cells] == ["load-1", "load-2", "load-3"]


def test_all_are_asked_where_there_are_few() -> None:
    assert LoadSettings(clients=20, long_polls=0).scenario().task.request_fraction == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cells", 0),
        ("cells", 1001),
        ("clients", 0),
        ("clients", 1_000_001),
        ("duration_s", 0.5),
        ("duration_s", float("nan")),
        ("duration_s", 86_401.0),
        ("report_every_s", 0.0),
        ("round_every_s", -1.0),
        ("asked_per_round", 0),
        ("round_deadline_s", 0.0),
        ("model_bytes", 1023),
        ("model_bytes", 2**30 + 1),
        ("long_polls", -1),
        ("poll_wait_s", 61.0),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is .+: it must be from .+ to .+$"):
        LoadSettings(**{name: value})  # type: ignore[arg-type]


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"100 long polls: there are only 99 clients"):
        LoadSettings(clients=99)
    with pytest.raises(SettingsError, match=r"200 cells: there are only 150 clients"):
        LoadSettings(clients=150, cells=200)
    assert len(LoadSettings(clients=150, cells=150).scenario().cells) == 150
    with pytest.raises(SettingsError, match=r"the test of 4 s is too short for a round"):
        LoadSettings(duration_s=4)
