"""Doing what an image's Dockerfile says, instruction by instruction, in a clean venv in place of a container.

The venv stands for the image's Python, and a directory for its root: the paths that the Dockerfile makes are
moved there. Only ``useradd`` is left out, which would change the users of this machine.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docker.build_context import build_context
from tests.docker.dockerfile import ROOT, Instruction, Stage, lineage, read_stages

_MACHINE = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy")
"""What a build knows of its machine, beside how pip reaches its index."""


class DockerfileRunner:
    """One image; ``environment`` is what its processes are given."""

    def __init__(self, target: str, directory: Path, build_arguments: Mapping[str, str]) -> None:
        self.target = target
        self._given = build_arguments
        self._directory = directory
        self._root = directory / target / "root"
        self._venv = directory / target / "venv"
        self._moved = ["/data", "/tmp"]  # made by useradd, and by the system
        self._working = self._root
        self._arguments: dict[str, str] = {}
        self._image: dict[str, str] = {}
        for path in self._moved:
            (self._root / path[1:]).mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process in the image."""
        machine = {
            name: value for name, value in os.environ.items() if name in _MACHINE or name[:4] == "PIP_"
        }
        path = f"{self._venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return machine | self._arguments | self._image | {"PATH": path}

    @property
    def installed(self) -> dict[str, str]:
        """The packages of the image, with their versions."""
        listed = subprocess.run(
            ["pip", "freeze", "--all"], env=self.environment, check=True, capture_output=True, text=True
        ).stdout
        return dict(line.split("==", 1) for line in listed.splitlines() if "==" in line)

    @property
    def packages(self) -> Path:
        """Where they are."""
        (directory,) = self._venv.glob("lib/python*/site-packages")
        return directory

    def build(self) -> "DockerfileRunner":
        """Carry out all instructions, in order."""
        subprocess.run([sys.executable, "-m", "venv", self._venv], check=True)
        for stage in lineage(read_stages(), self.target):
            for instruction in stage.instructions:
                self._carry_out(stage, instruction)
        return self

    def move(self, text: str) -> str:
        """The same text, with paths of the image moved to where they are here."""
        for path in self._moved:
            text = re.sub(rf"(?<![\w/.]){re.escape(path)}(?![\w.-])", str(self._root) + path, text)
        return text

    def _carry_out(self, stage: Stage, instruction: Instruction) -> None:
        acts: dict[str, Callable[[Instruction], None]] = {
            "ARG": self._take_argument,
            "COPY": self._copy,
            "ENV": self._set_environment,
            "RUN": self._run,
            "WORKDIR": self._go_to,
        }
        if act := acts.get(instruction.word):
            print(f"[{stage.name}] {instruction.word} {instruction.text}", flush=True)
            act(instruction)

    def _take_argument(self, instruction: Instruction) -> None:
        self._arguments |= {
            name: self._given.get(name, default) for name, default in instruction.pairs().items()
        }

    def _set_environment(self, instruction: Instruction) -> None:
        self._image |= {name: self.move(value) for name, value in instruction.pairs().items()}

    def _go_to(self, instruction: Instruction) -> None:
        self._moved.append(instruction.text)
        self._working = self._root / instruction.text[1:]
        self._working.mkdir(parents=True, exist_ok=True)

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.arguments().split()
        into = self._working / target
        for path in build_context():
            for source in sources:
                if path == source:
                    _copy_file(ROOT / path, into / path)
                elif path.startswith(f"{source}/"):
                    _copy_file(ROOT / path, into / path.removeprefix(f"{source}/"))

    def _run(self, instruction: Instruction) -> None:
        if instruction.text.startswith("useradd"):
            return
        if mount := instruction.flags().get("mount"):
            options = dict(part.split("=", 1) for part in mount.split(","))
            other = DockerfileRunner(options["from"], self._directory, self._given).build()
            self._moved.append(options["target"])
            shutil.copytree(
                other._root / options["source"][1:], self._root / options["target"][1:], dirs_exist_ok=True
            )
        command = self.move(instruction.arguments())
        subprocess.run(["sh", "-c", command], cwd=self._working, env=self.environment, check=True)

    def fill_in(self, command: list[str]) -> list[str]:
        """A command of the image, to be started here."""
        return [shutil.which(command[0], path=self.environment["PATH"]) or command[0], *command[1:]]


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
