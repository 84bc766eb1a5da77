"""Every update of the corpus is refused for what it is, named in the round's record, and leaves nothing."""

import random
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hostile.raw_http import address_of, exchange, update_head
from tests.hostile.update_corpus import HostileUpdate, hostile_updates
from tests.integration.cell import make_model, started_round
from tests.integration.rounds_setup import get_round, slot_of, upload_as
from tests.running_service import running_service

CORPUS = hostile_updates(random.Random(8))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def service(data_dir: Path) -> Iterator[httpx.Client]:
    with running_service(data_dir) as client:
        yield client


@pytest.fixture(scope="module")
def cell(service: httpx.Client) -> tuple[dict[str, Any], dict[str, str]]:
    """A round with a client that sends nonsense, and one that does not; and their keys."""
    return started_round(service, 2)


@pytest.mark.parametrize("update", CORPUS, ids=lambda update: update.kind)
def test_it_is_refused_and_recorded(
    update: HostileUpdate, service: httpx.Client, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    opened, keys = cell
    hostile, key = next(iter(keys.items()))
    before = slot_of(service, opened["round_id"], hostile)
    head = update_head(opened["round_id"], hostile, key, update.body, **update.headers)
    answer = exchange(address_of(service), head + update.body)
    assert (answer.status, answer.problem["cause"]) == update.expected, answer
    after = slot_of(service, opened["round_id"], hostile)
    assert after["outcome"] == "pending"
    assert after["rejections"] - before["rejections"] == update.is_recorded
    if update.is_recorded:
        assert after["last_rejection"] == answer.problem["detail"]


def test_an_update_without_end_is_cut_off(
    service: httpx.Client, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    """It announces no length, so it has to be read to be found too large."""
    opened, keys = cell
    hostile, key = next(iter(keys.items()))
    head = update_head(
        opened["round_id"], hostile, key, b"", content_length=None, transfer_encoding="chunked"
    )
    chunk = b"2710\r\n" + bytes(10_000) + b"\r\n"
    answer = exchange(address_of(service), chain([head], repeat(chunk, 100)))
    assert answer.problem["cause"] == "BODY_TOO_LARGE"
    assert "larger" in slot_of(service, opened["round_id"], hostile)["last_rejection"]


@pytest.mark.parametrize(
    ("announced", "status"),
    [("10", 422), (str(10**12), 413), (str(2**64 - 1), 413), (str(2**64), 400), ("-1", 400)],
)
def test_lengths_that_are_lies(
    announced: str, status: int, service: httpx.Client, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    opened, keys = cell
    hostile, key = next(iter(keys.items()))
    update = make_model(5)
    head = update_head(opened["round_id"], hostile, key, update, content_length=announced)
    sent = update[:10] if announced == "10" else update  # what follows would be taken for the next request
    assert exchange(address_of(service), head + sent).status == status


def test_what_follows_a_body_is_no_part_of_it(
    service: httpx.Client, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    opened, keys = cell
    hostile, key = next(iter(keys.items()))
    update = make_model(5)
    head = update_head(opened["round_id"], hostile, key, update, content_length="10")
    answer = exchange(address_of(service), head + update)
    assert answer.status in {400, 422}
    assert slot_of(service, opened["round_id"], hostile)["outcome"] == "pending"


@pytest.mark.parametrize("ranges", [["0-"] * 3000, ["0-0", "2-2"] * 3000, ["-1"] * 3000])
def test_many_ranges_do_not_make_a_model_larger(
    ranges: list[str], service: httpx.Client, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    opened, _ = cell
    path = f"/rounds/{opened['round_id']}/model"
    whole = service.get(path).content
    part = service.get(path, headers={"Range": f"bytes={','.join(ranges)}"})
    assert part.status_code in {200, 206, 416}
    assert len(part.content) < 3 * len(whole)


def test_what_came_before_spoils_nothing(
    service: httpx.Client, data_dir: Path, cell: tuple[dict[str, Any], dict[str, str]]
) -> None:
    """The same clients may still send what is asked for; only that is kept, and counts."""
    opened, keys = cell
    updates = dict(zip(keys, (make_model(1), make_model(2)), strict=True))
    models = {path for path in (data_dir / "models").rglob("*") if path.is_file()}
    assert len(models) == 1, "the model of the round"
    for client_id, update in updates.items():
        assert (
            upload_as(service, keys[client_id], opened["round_id"], client_id, update=update).status_code
            == 201
        )
    kept = {path for path in (data_dir / "models").rglob("*") if path.is_file()} - models
    assert {path.read_bytes() for path in kept} == set(updates.values())
    assert get_round(service, opened["round_id"])["received"] == 2
