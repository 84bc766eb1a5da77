"""Names in the documentation exist: files, modules, settings, and the functions of the protocol map."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from services.settings import Settings, WorkerSettings

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "README.md", ROOT / "docker" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*GUIDES, *sorted((ROOT / "docs" / "adr").glob("*.md"))]
SETTINGS = {f"FEDCS_{name.upper()}" for kind in (Settings, WorkerSettings) for name in kind.model_fields}
SIMULATOR_OPTIONS = {"FEDCS_URL"}
_PATH = re.compile(
    r"`((?:services|operator_api|trainer_worker|fedcs_client|client_sim|tests|docker)/[\w./-]*)`"
)
_MODULE = re.compile(r"python -m ([\w.]+)")
_MAP_ROW = re.compile(r"^\| .+? \| (.+?) \| (.+?) \|$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_modules_and_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []
    assert [module for module in _MODULE.findall(text) if find_spec(module) is None] == []
    assert set(re.findall(r"FEDCS_\w+", text)) - SETTINGS - SIMULATOR_OPTIONS == set()


def test_every_setting_is_documented() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in GUIDES)
    assert SETTINGS - set(re.findall(r"FEDCS_\w+", text)) == set()


def test_the_protocol_map_names_what_its_files_define() -> None:
    rows = _MAP_ROW.findall((ROOT / "docs" / "protocol-map.md").read_text(encoding="utf-8"))
    checked = 0
    for names, places in rows:
        paths = [ROOT / path for path in _PATH.findall(places)]
        files = [file for path in paths for file in (path.glob("*.py") if path.is_dir() else [path])]
        code = "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`(\w+)`", names) if files else ():
            assert re.search(rf"\b{name}\b", code), f"{name} is not in {places}"
            checked += 1
    assert checked > len(rows)
