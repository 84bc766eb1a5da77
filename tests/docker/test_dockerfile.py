"""The Dockerfile, and what a build is given."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docker.build_context import build_context
from tests.docker.dockerfile import DOCKERFILE, IMAGES, ROOT, Instruction, lineage, read_stages


def _all(image: str, word: str) -> list[Instruction]:
    return [instruction for stage in lineage(read_stages(), image) for instruction in stage.all(word)]


def _lint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("hadolint")),
        "--config",
        str(ROOT / "docker/hadolint.yaml"),
    ]
    return subprocess.run([*command, str(dockerfile)], capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    linted = _lint(DOCKERFILE)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_hadolint_would_have_found_an_image_without_a_version(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nCMD fedcs serve\n")
    assert {"DL3006", "DL3025"} <= set(re.findall(r"DL\d+", _lint(bad).stdout))


@pytest.mark.parametrize("image", IMAGES)
def test_no_process_runs_as_root(image: str) -> None:
    *_, user = [instruction.text for instruction in lineage(read_stages(), image)[-1].all("USER")]
    assert all(int(part) > 0 for part in user.split(":"))


@pytest.mark.parametrize("image", IMAGES)
def test_the_last_stage_says_what_starts_and_how_its_health_is_told(image: str) -> None:
    last = lineage(read_stages(), image)[-1]
    assert [len(last.all(word)) for word in ("CMD", "HEALTHCHECK")] == [1, 1]


@pytest.mark.parametrize("image", IMAGES)
def test_labels_say_which_version_it_is(image: str) -> None:
    labels = {name: value for item in _all(image, "LABEL") for name, value in item.pairs().items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    assert labels["org.opencontainers.image.base.name"] == lineage(read_stages(), image)[0].base
    assert labels["org.opencontainers.image.description"]
    assert labels["org.opencontainers.image.revision"] == "${REVISION}"


def test_a_new_revision_makes_no_new_layer_of_packages() -> None:
    last = [lineage(read_stages(), image)[-1] for image in IMAGES]
    told = [
        stage.name
        for stage in read_stages().values()
        for instruction in stage.all("ARG")
        if "REVISION" in instruction.text
    ]
    assert sorted(told) == sorted(stage.name for stage in last)


@pytest.mark.parametrize("image", IMAGES)
def test_no_secret_is_in_a_layer(image: str) -> None:
    named = {name for word in ("ARG", "ENV") for item in _all(image, word) for name in item.pairs()}
    assert not [name for name in named if re.search("KEY|SECRET|PASSWORD|TOKEN", name)]


def test_the_base_has_an_exact_version() -> None:
    bases = {stage.base for stage in read_stages().values()} - set(read_stages())
    assert all(re.search(r":\d+\.\d+\.\d+-", base) for base in bases)


def test_a_build_is_given_the_code_and_nothing_else() -> None:
    context = build_context()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    code = set(pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    files = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
    assert {path.split("/")[0] for path in context} == code | files
    assert not [path for path in context if "__pycache__" in path]
