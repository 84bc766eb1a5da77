"""The compose file: valid, closed to the outside, and nothing secret in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from client_sim.commands import simulate
from services.settings import Settings, WorkerSettings
from tests.docker.compose import COMPOSE, services
from tests.docker.dockerfile import IMAGES, ROOT, lineage, read_stages

_FILES = [COMPOSE, ROOT / "docker" / "compose.cuda.yaml"]
_VARIABLE = re.compile(r"\$\{(\w+)(:?[-?][^}]*)?\}")


def _variables() -> dict[str, set[str]]:
    """What the compose file takes from its environment, and what it does if that is not there."""
    found: dict[str, set[str]] = {}
    for name, otherwise in _VARIABLE.findall(COMPOSE.read_text(encoding="utf-8")):
        found.setdefault(name, set()).add(otherwise[:2])
    return found


def _required() -> set[str]:
    return {name for name, otherwise in _variables().items() if otherwise == {":?"}}


def _validate(file: Path) -> int:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name)
def test_it_is_what_the_compose_specification_allows(file: Path) -> None:
    assert _validate(file) == 0


def test_the_validator_would_have_found_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text(encoding="utf-8").replace("read_only:", "readonly:"))
    assert _validate(wrong) == 1


def test_whatever_is_secret_has_to_be_given() -> None:
    optional = {name for name, otherwise in _variables().items() if otherwise != {":?"}}
    assert optional == {"API_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT"}
    named = re.findall(r"^\s*(\w*(?:KEY|PASSWORD|AUTH)): (.*)$", COMPOSE.read_text(), re.MULTILINE)
    assert named
    assert all(value.startswith("${") and ":?" in value for _, value in named)


def test_the_readme_makes_all_that_has_to_be_given(tmp_path: Path) -> None:
    page = (ROOT / "docker" / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True)
    lines = (tmp_path / ".env").read_text().splitlines()
    made = dict(line.split("=", 1) for line in lines)
    assert set(made) == _required()
    assert len(set(made.values())) == len(made), "each is another"
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in made.values()), "fit for a URL"
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    Settings.model_validate({"operator_key": made["FEDCS_OPERATOR_KEY"]})


def test_every_setting_is_one_that_is_read() -> None:
    known = {f"FEDCS_{name.upper()}" for kind in (Settings, WorkerSettings) for name in kind.model_fields}
    known |= {option.envvar for option in simulate.params if isinstance(option.envvar, str)}
    in_images = {
        name
        for image in IMAGES
        for stage in lineage(read_stages(), image)
        for instruction in stage.all("ENV")
        for name in instruction.pairs()
    }
    in_compose = {name for service in services().values() for name in service.get("environment", {})}
    given = {name for name in in_images | in_compose if name.startswith("FEDCS_")}
    assert len(given) > 5
    assert given <= known


def test_ports_are_open_to_this_host_alone() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert set(published) == {"api", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


@pytest.mark.parametrize("name", services())
def test_images_have_versions_and_limits(name: str) -> None:
    service = services()[name]
    _, version = service["image"].rsplit(":", 1)
    assert re.search(r"\d+\.\d+\.\d+|\d+\.\d+-|RELEASE\.\d{4}", version)
    assert service["restart"]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", sorted(set(services()) - {"bucket", "api", "worker", "simulator"}))
def test_what_is_not_ours_has_its_health_checked(name: str) -> None:
    assert services()[name]["healthcheck"]["test"]


def test_only_minio_can_write_beside_its_volumes() -> None:
    assert {name for name, service in services().items() if not service.get("read_only")} == {"minio"}


@pytest.mark.parametrize("name", [name for name, item in services().items() if "/minio:" in item["image"]])
def test_no_volume_without_a_name_is_left_behind(name: str) -> None:
    """The image declares /data a volume: where nothing is mounted there, each start makes one that stays."""
    service = services()[name]
    mounted = {volume.split(":")[1] for volume in service.get("volumes", ())} | set(service.get("tmpfs", ()))
    assert "/data" in mounted


@pytest.mark.parametrize("image", IMAGES)
def test_each_of_our_images_is_built_by_a_target(image: str) -> None:
    build = services()[image]["build"]
    assert build["target"] == image
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).is_file()
    assert image in read_stages()


def test_nobody_starts_before_what_it_needs() -> None:
    for service in services().values():
        for needed, how in service.get("depends_on", {}).items():
            ends = how["condition"] == "service_completed_successfully"
            assert ends == (needed == "bucket")
            assert ends or how["condition"] == "service_healthy"
