"""Escaping of untrusted text for spreadsheets, images and terminals."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that start a formula in a spreadsheet; the last four are full-width."""


def escape_formula(value: object) -> object:
    """Prefix text that a spreadsheet would interpret as a formula with a ``'``."""
    if isinstance(value, str) and value.lstrip().startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


def escape_unprintable(text: str, keep: str = "") -> str:
    r"""Replace unprintable characters by escapes such as ``\x9b``, except those in ``keep``.

    These are the control characters that a terminal interprets, and characters that XML does not allow.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
