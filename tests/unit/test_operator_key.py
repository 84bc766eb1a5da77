from pathlib import Path

from services.startup import _write_once, load_or_create_key


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "new" / "dir")
    assert load_or_create_key(tmp_path / "new" / "dir") == key
    assert load_or_create_key(tmp_path / "other") != key
    assert [path.name for path in (tmp_path / "new" / "dir").iterdir()] == ["operator.key"]


def test_the_first_of_two_writers_wins(tmp_path: Path) -> None:
    _write_once(tmp_path / "key", "first")
    _write_once(tmp_path / "key", "second")
    assert (tmp_path / "key").read_text() == "first"
