"""Who sends too slowly, too much or nothing at all is let go, and keeps nobody else waiting."""

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from operator_api.request_limits import allow_connections
from tests.hostile.raw_http import (
    Address,
    address_of,
    bearer,
    exchange,
    is_closed,
    is_cut_off,
    read_answer,
    request,
    update_head,
)
from tests.integration.cell import enrol_one, make_model, resources, started_round
from tests.integration.rounds_setup import eventually, slot_of, upload_as
from tests.running_service import OPERATOR_KEY, running_service, service_process

SLOW_PACE_S = 0.2
TIMEOUT_S = 120.0
"""After this the test fails: it is far longer than the service is told to wait."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def hasty(data_dir: Path) -> Iterator[httpx.Client]:
    """A service that waits for a second where others wait for ten or thirty."""
    with service_process(data_dir, None, module="tests.hostile.short_timeout_service") as (client, _):
        yield client


def dribble(address: Address, begin: bytes, drop: bytes) -> tuple[int, str]:
    """Send the beginning, and then a little now and then; the status and cause of what comes back."""
    with socket.create_connection(address, timeout=SLOW_PACE_S) as connection:
        connection.sendall(begin)
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            try:
                answer = read_answer(connection)
                return answer.status, answer.problem["cause"] if answer.status else ""
            except TimeoutError:
                connection.sendall(drop)
    raise AssertionError("the service has the patience of an angel")


def test_headers_that_dribble_in(hasty: httpx.Client) -> None:
    answer = dribble(address_of(hasty), b"GET /healthz HTTP/1.1\r\nHost: service\r\nX-Slow: ", b"x")
    assert answer == (408, "REQUEST_TIMEOUT")


def test_a_request_line_that_dribbles_in(hasty: httpx.Client) -> None:
    assert dribble(address_of(hasty), b"GET /", b"x") == (408, "REQUEST_TIMEOUT")


def test_empty_lines_are_no_beginning(hasty: httpx.Client) -> None:
    """The parser skips them, so they begin no request."""
    assert dribble(address_of(hasty), b"\r\n", b"\r\n") == (0, "")


def test_a_second_request_has_no_longer_time_than_the_first(hasty: httpx.Client) -> None:
    with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
        connection.sendall(request("GET", "/healthz"))
        assert read_answer(connection).status == 200
        connection.sendall(b"GET /healthz HT")
        assert read_answer(connection).problem["cause"] == "REQUEST_TIMEOUT"
        assert is_closed(connection)


def test_connections_that_never_say_anything_are_closed(hasty: httpx.Client) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address_of(hasty), timeout=TIMEOUT_S))
            for _ in range(100)
        ]
        assert hasty.get("/healthz").status_code == 200
        assert all(is_closed(connection) for connection in silent)


@pytest.mark.parametrize(
    "length", [{"content_length": "1000"}, {"content_length": None, "transfer_encoding": "chunked"}]
)
def test_json_that_dribbles_in(length: dict[str, str | None], hasty: httpx.Client) -> None:
    _, key = enrol_one(hasty)
    head = request("POST", "/reports", **{"content_type": "application/json", **bearer(key), **length})
    drop = b" " if length["content_length"] else b"1\r\n \r\n"
    assert dribble(address_of(hasty), head, drop) == (408, "REQUEST_TIMEOUT")


def test_forms_that_dribble_in(hasty: httpx.Client) -> None:
    """Anyone may send these two."""
    for path in ("/oauth2/token", "/dashboard/login"):
        form = {"content_type": "application/x-www-form-urlencoded", "content_length": "1000"}
        with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
            connection.sendall(request("POST", path, **form))
            assert read_answer(connection).status == 408
            assert is_closed(connection)


def test_an_update_that_dribbles_in_leaves_nothing(hasty: httpx.Client, data_dir: Path) -> None:
    opened, keys = started_round(hasty)
    ((client_id, key),) = keys.items()
    update = make_model(3)
    begin = update_head(opened["round_id"], client_id, key, update) + update[:10]
    answer = dribble(address_of(hasty), begin, update[:1])
    assert answer == (408, "REQUEST_TIMEOUT")
    eventually(lambda: not list((data_dir / "models" / "incoming").iterdir()))
    assert slot_of(hasty, opened["round_id"], client_id)["outcome"] == "pending"
    assert upload_as(hasty, key, opened["round_id"], client_id, update=update).status_code == 201


def test_an_endless_header_is_cut_off(hasty: httpx.Client) -> None:
    with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: service\r\nX-Long: ")
        assert is_cut_off(connection, b"x" * 10_000)


def test_an_endless_header_behind_a_request_that_waits_is_cut_off(hasty: httpx.Client) -> None:
    """Sent ahead, while a stream is being answered: nobody is to collect it meanwhile."""
    with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
        connection.sendall(
            request("GET", "/events", **bearer(OPERATOR_KEY)) + b"GET /healthz HTTP/1.1\r\nX: "
        )
        assert is_cut_off(connection, b"x" * 10_000)


def test_an_endless_trailer_is_cut_off(hasty: httpx.Client) -> None:
    """What may follow a body in chunks is like headers, and has nobody who waits for it."""
    form = "application/x-www-form-urlencoded"
    begin = request(
        "POST", "/oauth2/token", content_length=None, transfer_encoding="chunked", content_type=form
    )
    with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
        connection.sendall(begin + b"1\r\na\r\n0\r\nX: ")
        assert is_cut_off(connection, b"x" * 10_000)


def test_what_comes_after_an_early_refusal_is_not_read_for_ever(hasty: httpx.Client) -> None:
    """The answer is there before the body; the body goes on."""
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    with socket.create_connection(address_of(hasty), timeout=TIMEOUT_S) as connection:
        connection.sendall(request("POST", "/reports", content_length=None, transfer_encoding="chunked"))
        assert read_answer(connection).status == 401
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until and not is_cut_off(connection, chunk):
            pass
        assert time.monotonic() < until, "it is read for ever"


MOST = 20
Connect = Callable[[bytes], socket.socket]
SLOW_FORM = request(
    "POST",
    "/oauth2/token",
    content_type="application/x-www-form-urlencoded",
    content_length="1000",
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[httpx.Client]:
    """A service with few places. Its own connection is closed after each request."""
    with running_service(tmp_path, max_connections=str(MOST)) as service:
        service.headers["Connection"] = "close"
        yield service


@pytest.fixture
def connected(small: httpx.Client) -> Iterator[Connect]:
    """Makes a connection to it, and sends this."""
    with ExitStack() as stack:

        def connect(sent: bytes) -> socket.socket:
            connection = socket.create_connection(address_of(small), timeout=TIMEOUT_S)
            stack.enter_context(connection)
            connection.sendall(sent)
            return connection

        yield connect


def is_closed_now(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    return is_closed(connection)


def follow(connect: Connect, key: str) -> socket.socket:
    """Take a place with a valid key: a stream of events that has begun."""
    stream = connect(request("GET", "/events", **bearer(key)))
    assert read_answer(stream).status == 200
    return stream


def test_there_are_only_so_many_connections(small: httpx.Client, connected: Connect) -> None:
    streams = [follow(connected, OPERATOR_KEY) for _ in range(MOST)]

    def cause() -> str:
        with socket.create_connection(address_of(small), timeout=TIMEOUT_S) as connection:
            told: str = read_answer(connection).problem["cause"]
        return told

    assert eventually(lambda: cause() == "TOO_MANY_CONNECTIONS")
    for stream in streams:
        stream.close()
    assert eventually(lambda: exchange(address_of(small), request("GET", "/healthz")).status == 200)


@pytest.mark.parametrize("slow", [SLOW_FORM, b"", b"GET /assig", request("GET", "/healthz")])
def test_those_without_a_key_take_no_place_from_those_with_one(
    slow: bytes, small: httpx.Client, connected: Connect
) -> None:
    """Slow forms for tokens used to keep everybody out for half a minute."""
    client_id, key = enrol_one(small)
    followed = follow(connected, OPERATOR_KEY)
    slow_ones = [connected(slow) for _ in range(2 * MOST)]
    headers = {"Authorization": f"Bearer {key}"}
    assert small.post("/reports", json=resources(client_id), headers=headers).status_code == 201
    others = [follow(connected, OPERATOR_KEY) for _ in range(MOST - 1)]
    assert all(is_closed(item) for item in slow_ones)
    assert not any(is_closed_now(item) for item in (followed, *others))


def test_the_one_that_has_waited_longest_makes_room(small: httpx.Client, connected: Connect) -> None:
    slow_ones = [connected(SLOW_FORM) for _ in range(MOST)]
    assert small.get("/clients").status_code == 200
    assert read_answer(slow_ones[0]).problem["cause"] == "TOO_MANY_CONNECTIONS"
    assert not is_closed_now(slow_ones[-1])


def test_a_valid_key_keeps_no_place_for_the_next_request(small: httpx.Client, connected: Connect) -> None:
    earlier = [connected(request("GET", "/clients", **bearer(OPERATOR_KEY))) for _ in range(MOST)]
    for connection in earlier:
        assert read_answer(connection).status == 200
        connection.sendall(SLOW_FORM)
    assert eventually(lambda: exchange(address_of(small), request("GET", "/healthz")).status == 200)


def test_connections_leave_room_for_other_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        assert allow_connections(1000) == 1000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1256
        if hard != resource.RLIM_INFINITY:
            assert allow_connections(hard) == hard - 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
