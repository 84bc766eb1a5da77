"""The ids that callers see."""

import secrets

_ID_BYTES = 8


def new_id(kind: str) -> str:
    """An id that nobody can guess, and that says what it is of."""
    return f"{kind}-{secrets.token_hex(_ID_BYTES)}"
