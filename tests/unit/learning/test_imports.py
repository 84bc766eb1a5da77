import sys
from pathlib import Path

import pytest

from services.errors import ImportRefusedError
from services.learning.networks import import_callable
from tests.unit.learning import custom_parts

CUSTOM = custom_parts.__name__


@pytest.mark.parametrize("allowed", [CUSTOM, "tests.unit.learning", "tests.unit", "tests"])
def test_an_allowed_module_can_be_used_and_those_below_a_package(allowed: str) -> None:
    assert import_callable(f"{CUSTOM}:Perceptron", ("elsewhere", allowed)) is custom_parts.Perceptron


@pytest.mark.parametrize(
    "allowed", [(), ("elsewhere",), ("tests.uni",), (f"{CUSTOM}.deeper",), ("",), ("*",)]
)
def test_other_modules_are_refused_with_advice(allowed: tuple[str, ...]) -> None:
    with pytest.raises(
        ImportRefusedError, match=f"FEDCS_ALLOWED_IMPORTS has to name the module '{CUSTOM}' or a"
    ):
        import_callable(f"{CUSTOM}:Perceptron", allowed)


def test_a_name_that_only_begins_like_an_allowed_one_is_not_even_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests_evil.py").write_text("Net = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportRefusedError, match="may not be imported"):
        import_callable("tests_evil:Net", ("tests",))
    assert "tests_evil" not in sys.modules


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests.absent:Net", "ModuleNotFoundError: No module named 'tests.absent'"),
        ("tests..unit:Net", "ModuleNotFoundError"),
        (f"{CUSTOM}:Absent", f"AttributeError: module '{CUSTOM}' has no attribute 'Absent'"),
        (f"{CUSTOM}:", "AttributeError"),
        (f"{CUSTOM}:Perceptron.forward", "AttributeError"),
        (f"{CUSTOM}:Perceptron:forward", "AttributeError"),
    ],
)
def test_what_is_not_there_is_refused_with_advice(path: str, reason: str) -> None:
    with pytest.raises(ImportRefusedError, match=f"{reason}.*correct the name, or install") as refused:
        import_callable(path, ("tests",))
    assert repr(path) in str(refused.value)


@pytest.mark.parametrize("content", ["raise ValueError('mended tomorrow')", "def ("])
def test_a_module_that_cannot_be_loaded_is_refused(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_broken.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportRefusedError, match=r"ValueError: mended tomorrow|SyntaxError"):
        import_callable("own_broken:Net", ("own_broken",))


def test_what_an_allowed_module_has_imported_itself_is_not_allowed_with_it() -> None:
    with pytest.raises(ImportRefusedError, match=r"comes from 'torch.*', which FEDCS_ALLOWED_IMPORTS"):
        import_callable(f"{CUSTOM}:TensorDataset", ("tests",))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ImportRefusedError, match=f"'{CUSTOM}:NOT_CALLABLE' is not a class or function"):
        import_callable(f"{CUSTOM}:NOT_CALLABLE", ("tests",))
