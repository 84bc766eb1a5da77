"""The operator key of an embedded stack: the one in the environment, else one made at the first start."""

import os
import secrets
from pathlib import Path

_KEY_BYTES = 32


def find_or_make_key(data_dir: Path) -> str:
    """Read the key kept in the data directory, or make one there that only its owner can read."""
    path = data_dir / "operator.key"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES))
    return path.read_text().strip()
