from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.escaping import escape_formula, escape_unprintable

FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "  =1",
    "\t=1",
    "\r=1",
    "\uff1d1",
    "\uff0b1",
    "\uff0d1",
    "\uff201",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_spreadsheet_takes_a_formula_for_text(text: str) -> None:
    assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("value", ["", "c1", "a=1", "1-2", "'=1", -1, -1.5, None, True])
def test_other_cells_are_left_as_they_are(value: object) -> None:
    assert escape_formula(value) is value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bus 7 é中🚌", "bus 7 é中🚌"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\x9bb\x7fc\x00", r"a\x9bb\x7fc\x00"),
        ("\ufffe\uffff\ud800", r"\ufffe\uffff\ud800"),
        ("\u202eevil", r"\u202eevil"),
        ("a\nb", r"a\nb"),
    ],
)
def test_what_cannot_be_printed_is_shown_by_its_number(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown


def test_line_breaks_can_be_kept() -> None:
    assert escape_unprintable("a\nb\x9b", keep="\n") == "a\nb\\x9b"


@given(st.text(st.characters()))
def test_xml_can_hold_what_is_escaped(text: str) -> None:
    element = ET.Element("a")
    element.text = escape_unprintable(text)
    assert (ET.fromstring(ET.tostring(element, "unicode")).text or "") == element.text
