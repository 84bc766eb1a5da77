"""The compose file, read as data."""

from typing import Any

import yaml

from tests.docker.dockerfile import ROOT

COMPOSE = ROOT / "docker" / "compose.yaml"


def services() -> dict[str, dict[str, Any]]:
    """The services by name, with what they have in common filled in."""
    read: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return read
