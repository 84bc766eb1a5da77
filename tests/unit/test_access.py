"""The text of an API key."""

import pytest

from services.access import key_id_of, make_key


def test_the_id_is_in_the_key() -> None:
    made = make_key()
    assert key_id_of(made.text) == made.key_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fedcs",
        "fedcs_0123456789abcdef",
        "fedcs_0123456789abcdef_",
        "fedcs_0123456789abcde_x",
        "other_0123456789abcdef_x",
        "fedcs_0123456789ABCDEF_x",
        "fedcs_" + 16 * "\0" + "_x",
        "fedcs_0123456789abcdef\n_x",
    ],
)
def test_what_is_no_key_of_ours_has_no_id(text: str) -> None:
    assert key_id_of(text) is None
