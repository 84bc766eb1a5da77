"""Attackers: threads that send the requests of the corpora and the fuzzer, and slow connections."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice

from tests.hostile.fuzzed_requests import fuzzed_requests
from tests.hostile.http_corpus import hostile_requests
from tests.hostile.json_corpus import hostile_bodies
from tests.hostile.raw_http import Address, bearer, exchange, request, update_head
from tests.hostile.update_corpus import hostile_updates
from tests.integration.cell import resources

WAITING = -1
"""Stands for a request that announced more than it sent: the attacker goes before the service gives up."""
_ATTACKERS = 8
_ATTENTION_S = 3.0
_DROP_EVERY_S = 2.0

Keys = dict[str, str]


@dataclass(frozen=True)
class Attack:
    """A request to send, and the statuses it may get; any below 500 if it does not say."""

    kind: str
    content: bytes
    statuses: frozenset[int] = frozenset()
    is_recorded: bool = False


@dataclass
class Toll:
    """What came of the attacks."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    recorded: int = 0
    """Updates that the round's record has to name."""
    surprises: list[str] = field(default_factory=list)
    """Answers that none should have got."""

    def note(self, attack: Attack, status: int) -> None:
        """Count an answer."""
        self.statuses[attack.kind, status] += 1
        self.recorded += attack.is_recorded and status in attack.statuses
        allowed = status in attack.statuses if attack.statuses else status < 500
        if not allowed and status != WAITING:
            self.surprises.append(f"{attack.kind}: {status} for {attack.content[:200]!r}")


def upload_attacks(seed: int, round_id: str, keys: Keys) -> Iterator[Attack]:
    """Hostile updates without end, by each of these clients in turn."""
    clients = cycle(keys.items())
    for number in range(10**9):
        for update in hostile_updates(random.Random(f"{seed}-{number}")):
            client_id, key = next(clients)
            head = update_head(round_id, client_id, key, update.body, **update.headers)
            yield Attack("update", head + update.body, frozenset({update.expected[0]}), update.is_recorded)


def request_attacks(seed: int, operator_key: str, round_id: str, keys: Keys) -> Iterator[Attack]:
    """Every request of the corpora once, then fuzzed ones without end, by each of these clients in turn."""
    rng = random.Random(seed)
    clients = cycle(keys.items())
    for item in hostile_requests(operator_key, next(iter(keys.values())), rng):
        yield Attack("HTTP", item.content, item.statuses)
    for body in hostile_bodies(resources(next(iter(keys))), rng):
        _, key = next(clients)
        headers: dict[str, str | None] = {"content_type": "application/json", **bearer(key), **body.headers}
        content = request("POST", "/reports", body.body, **headers)
        yield Attack("JSON", content, frozenset({body.expected[0]}))
    fuzzers = [
        fuzzed_requests(random.Random(f"{seed}-{number}"), operator_key, client_id, key, round_id)
        for number, (client_id, key) in enumerate(keys.items())
    ]
    for fuzzer in cycle(fuzzers):
        fuzzed = next(fuzzer)
        yield Attack(f"fuzzed {fuzzed.kind}", fuzzed.content)


def evenly(few: Iterable[Attack], many: Iterable[Attack], many_per_few: int) -> Iterator[Attack]:
    """The few spread among the many, until the many have ended."""
    few, many = iter(few), iter(many)
    while batch := list(islice(many, many_per_few)):
        yield from islice(few, 1)
        yield from batch


def attack(address: Address, attacks: Iterator[Attack], rate_per_s: float, most_s: float) -> Toll:
    """Send all of them from many threads, not faster than this and not for longer; what came of it."""
    toll, lock = Toll(), threading.Lock()
    due_s = time.monotonic()
    until_s = due_s + most_s

    def take() -> Attack | None:
        nonlocal due_s
        with lock:
            due_s = max(due_s + 1 / rate_per_s, time.monotonic() - 1)
            pause_s = due_s - time.monotonic()
            taken = next(attacks, None) if time.monotonic() < until_s else None
        if pause_s > 0:
            time.sleep(pause_s)
        return taken

    def send_all() -> None:
        while (first := take()) is not None:
            try:
                status = exchange(address, first.content, _ATTENTION_S).status
            except TimeoutError:
                status = WAITING
            with lock:
                toll.note(first, status)

    with ThreadPoolExecutor(_ATTACKERS) as threads:
        for done in [threads.submit(send_all) for _ in range(_ATTACKERS)]:
            done.result()
    return toll


@contextmanager
def slow_connections(address: Address, number: int) -> Iterator[Callable[[], int]]:
    """So many connections that send a byte of a header now and then; how often one of them was closed."""
    ended, closed = threading.Event(), Counter[str]()

    def dribble() -> None:
        with ExitStack() as stack:
            open_ones = [stack.enter_context(_slow_one(address)) for _ in range(number)]
            while not ended.wait(_DROP_EVERY_S):
                for place, connection in enumerate(open_ones):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        closed["closed"] += 1
                        open_ones[place] = stack.enter_context(_slow_one(address))

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        yield lambda: closed["closed"]
    finally:
        ended.set()
        thread.join()


def _slow_one(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=30)
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: service\r\nX-Slow: ")
    return connection
