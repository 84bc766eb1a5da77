"""``make images``: do what builds each image, start what the image starts, and check its health."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from tests.docker.build_context import build_context
from tests.docker.dockerfile import IMAGES, ROOT, Instruction, lineage, read_stages
from tests.docker.dockerfile_runner import DockerfileRunner
from tests.redis_server import eventually
from tests.running_service import OPERATOR_KEY
from tests.running_stack import running_stack

_PATIENCE_S = 300.0
_PACKAGING = {"pip", "setuptools", "wheel"}
"""They come with the Python of the image, or of the venv."""


def check_packages(run: DockerfileRunner) -> None:
    """Versions are those in constraints.txt, torch is with the worker alone, and all of our code is there."""
    pinned = dict(
        line.split("==", 1)
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    wanted = {_plain(name): version for name, version in pinned.items()}
    found = {_plain(name): version.split("+")[0] for name, version in run.installed.items()}
    others = {
        f"{name}=={version}"
        for name, version in found.items()
        if wanted.get(name) != version and name not in _PACKAGING
    }
    assert not others, f"not in constraints.txt: {sorted(others)}"
    assert ("torch" in found) == (run.target == "worker")
    missing = {path for path in build_context() if "/" in path and not (run.packages / path).is_file()}
    assert not missing, f"not installed: {sorted(missing)}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_api(run: DockerfileRunner, directory: Path) -> None:
    """It becomes healthy, and is not once it has ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = {"FEDCS_OPERATOR_KEY": OPERATOR_KEY, "FEDCS_HOST": "127.0.0.1", "FEDCS_PORT": port}
    settings |= {"FEDCS_MIN_FREE_DISK_BYTES": "0", "FEDCS_API_ROOT": "/fedcs/v1"}
    _check_health(run, directory, settings)


def check_worker(run: DockerfileRunner, directory: Path) -> None:
    """The same, beside an API and a Redis."""
    with running_stack(directory) as stack:
        _check_health(
            run, directory, {f"FEDCS_{name.upper()}": text for name, text in stack.settings.items()}
        )


def check_simulator(run: DockerfileRunner, directory: Path) -> None:
    """It plays a round against a service, and ends well."""
    with running_stack(directory, "--processes", "1") as stack:
        command = [*_last(run, "ENTRYPOINT").command(), *_last(run, "CMD").command()]
        environment = run.environment | {
            "FEDCS_URL": str(stack.service.base_url),
            "FEDCS_OPERATOR_KEY": OPERATOR_KEY,
        }
        options = ["--no-training", "--rounds", "1", "--clients", "20"]
        subprocess.run(
            [*run.fill_in(command), *options], cwd=directory, env=environment, check=True, timeout=_PATIENCE_S
        )
    assert (directory / "fedcs-simulation" / "summary.json").is_file()


def _check_health(run: DockerfileRunner, directory: Path, settings: dict[str, str]) -> None:
    environment = run.environment | settings
    check = run.fill_in(_last(run, "HEALTHCHECK").command())

    def is_healthy() -> bool:
        return subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 0

    assert not is_healthy(), "before it has started"
    with _started(run, directory, environment):
        assert eventually(is_healthy, _PATIENCE_S), (directory / "log").read_text()
    (Path(environment.get("FEDCS_HEARTBEAT_FILE", "/nowhere"))).unlink(missing_ok=True)
    assert not is_healthy(), "after it has ended"


@contextmanager
def _started(run: DockerfileRunner, directory: Path, environment: dict[str, str]) -> Iterator[None]:
    command = run.fill_in(_last(run, "CMD").command())
    with (
        (directory / "log").open("w") as log,
        Popen(command, cwd=directory, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0, (directory / "log").read_text()


def _last(run: DockerfileRunner, word: str) -> Instruction:
    stages = lineage(read_stages(), run.target)
    return [instruction for stage in stages for instruction in stage.all(word)][-1]


_CHECKS = {"api": check_api, "worker": check_worker, "simulator": check_simulator}


def main(targets: list[str]) -> None:
    """Check these images, or all."""
    given = {name: os.environ[name] for name in ("TORCH_INDEX",) if name in os.environ}
    for target in targets or IMAGES:
        with tempfile.TemporaryDirectory(prefix=f"fedcs-{target}-") as place:
            run = DockerfileRunner(target, Path(place), given).build()
            check_packages(run)
            _CHECKS[target](run, Path(place))
        print(f"{target}: built and checked", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
