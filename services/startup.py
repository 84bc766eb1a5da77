"""The ready message of ``fedcs up``, its parser, and the operator key that it creates."""

import os
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KEY_FILE = "operator.key"
_KEY_BYTES = 32


def load_or_create_key(data_dir: Path) -> str:
    """Load the key from the data directory, or create it there with mode 0600."""
    path = data_dir / KEY_FILE
    if not path.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_once(path, secrets.token_hex(_KEY_BYTES))
    return path.read_text().strip()


def _write_once(path: Path, text: str) -> None:
    """Write a file atomically; the first of several writers wins."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".operator-key-") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return


_READY = "FedCS Operator is ready at "
_KEY = "  operator key  "
_GIVEN_KEY = "that in FEDCS_OPERATOR_KEY"


@dataclass(frozen=True)
class Announcement:
    """The URL and the operator key of a started service."""

    url: str
    created_key: str | None
    """The operator key if the service created it; a configured key is not repeated."""
    key_file: Path | None = None
    """Where the created key is kept."""
    log_file: Path | None = None

    def text(self) -> str:
        """The message for people and for ``read_announcement``."""
        lines = [
            f"{_READY}{self.url}",
            f"  dashboard     {self.url}/",
            f"  API docs      {self.url}/docs",
            f"{_KEY}{self.created_key or _GIVEN_KEY}",
        ]
        if self.key_file is not None:
            lines.append(f"  kept in       {self.key_file}")
        if self.log_file is not None:
            lines.append(f"  log           {self.log_file}")
        return "\n".join([*lines, "Stop with Ctrl-C."])


def read_announcement(lines: Iterable[str]) -> Announcement | None:
    """Read lines until the service is ready; none if the output ends before."""
    url = ""
    for line in lines:
        if line.startswith(_READY):
            url = line.removeprefix(_READY).strip()
        elif line.startswith(_KEY):
            key = line.removeprefix(_KEY).strip()
            return Announcement(url, None if key == _GIVEN_KEY else key)
    return None
