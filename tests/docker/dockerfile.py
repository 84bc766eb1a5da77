"""The Dockerfile, read into its stages and their instructions."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGES = ("api", "worker", "simulator")


@dataclass(frozen=True)
class Instruction:
    """One instruction, with its lines joined."""

    word: str
    text: str

    def flags(self) -> dict[str, str]:
        """What stands before the arguments, such as ``--from=wheel``."""
        found = re.match(r"(--\S+\s+)*", self.text)
        assert found is not None
        return dict(flag.removeprefix("--").split("=", 1) for flag in found.group().split())

    def arguments(self) -> str:
        """What stands after the flags."""
        return re.sub(r"^(--\S+\s+)*", "", self.text)

    def command(self) -> list[str]:
        """The arguments of CMD or ENTRYPOINT, or of the CMD in a HEALTHCHECK."""
        command: list[str] = json.loads(self.arguments().removeprefix("CMD").strip())
        return command

    def pairs(self) -> dict[str, str]:
        """The names and values of ENV, LABEL and ARG."""
        parts = [part.partition("=") for part in shlex.split(self.text)]
        return {name: value for name, _, value in parts}


@dataclass
class Stage:
    """One stage: what it is built on, and how."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        """Its instructions of one kind."""
        return [instruction for instruction in self.instructions if instruction.word == word]


def read_stages(path: Path = DOCKERFILE) -> dict[str, Stage]:
    """The stages by their names, in order; what stands before them is only for FROM."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    before: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            base, name = Template(rest).substitute(before).split(" AS ")
            stages[name] = Stage(name, base)
        elif stages:
            list(stages.values())[-1].instructions.append(Instruction(word, rest))
        else:
            before |= Instruction(word, rest).pairs()
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """A stage after all that it is built on."""
    stage = stages[name]
    return [*(lineage(stages, stage.base) if stage.base in stages else []), stage]
