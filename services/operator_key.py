"""The operator key of an embedded stack: made at the first start, kept with the data."""

import os
import secrets
import tempfile
from pathlib import Path

_KEY_BYTES = 32


def find_or_make_key(data_dir: Path) -> str:
    """Read the key kept in the data directory, or make one there that only its owner can read."""
    path = data_dir / "operator.key"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        _write_once(path, secrets.token_hex(_KEY_BYTES))
    return path.read_text().strip()


def _write_once(path: Path, text: str) -> None:
    """Write a whole file or none, whenever this process is killed; the first of several writers wins."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".operator-key-") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return
