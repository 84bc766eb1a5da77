"""Ten tasks open rounds at random in three cells through four API processes that are killed at random.

``python -m tests.faults.resource_blocks --seconds 120 --database postgresql`` prints what it found: no two
allocations may overlap, none may be left, and every task has to have rounds.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from threading import Event, Lock
from typing import Any

import httpx
from sqlalchemy import func, select

from services.storage.database import Database
from services.storage.tables import allocations, held_blocks
from tests.databases import KINDS, new_database, postgres_server
from tests.integration.cell import set_model
from tests.integration.rounds_setup import QUICK
from tests.running_service import service_process

PROCESSES = 4
CALLERS = 4
CELLS = {"east": 30, "north": 25, "west": 20}
TASKS: tuple[dict[str, Any], ...] = tuple(
    {
        "cells": cells,
        "resource_blocks": blocks,
        "min_resource_blocks": least,
        "priority": place % 3,
        "auto_advance": place % 2 == 0,
    }
    for place, (cells, blocks, least) in enumerate(
        [
            (None, 10, 10),
            (["east"], 10, 5),
            (["north"], 10, 10),
            (["west"], 15, 5),
            (["east", "north"], 10, 10),
            (["north", "west"], 10, 5),
            (["west", "east"], 15, 15),
            (None, 20, 10),
            (["north"], 25, 25),
            (["east"], 5, 5),
        ]
    )
)

_EXPECTED = {"RESOURCE_BLOCKS_BUSY", "ROUND_OPEN", "NOT_READY"}


@dataclass(frozen=True)
class Findings:
    """What a run found."""

    rounds: dict[str, int]
    """Rounds of each task."""
    kills: int
    looks: int
    """How often the database was looked at during the run."""
    allocations: int
    overlaps: list[str]
    leaked: int
    """Blocks that are held after the end."""

    def check(self) -> None:
        """Raise if something is wrong."""
        assert self.overlaps == []
        assert self.leaked == 0
        assert all(self.rounds.values()), self.rounds
        assert self.kills
        assert self.looks


class _Processes:
    """API processes on one database; a killed one is started again."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._lock = Lock()
        self._running: list[tuple[ExitStack, httpx.Client, Any]] = []

    def start(self) -> None:
        """Start another process."""
        stack = ExitStack()
        started = service_process(
            self._directory, self._directory / "log", database_url=self._url, reconciler_lease_s="1"
        )
        client, process = stack.enter_context(started)
        with self._lock:
            self._running.append((stack, client, process))

    def any(self, rng: random.Random) -> httpx.Client:
        """One of the processes."""
        with self._lock:
            return rng.choice(self._running)[1]

    def kill(self, rng: random.Random) -> None:
        """Kill one of them with SIGKILL, and start another."""
        with self._lock:
            stack, _, process = self._running.pop(rng.randrange(len(self._running)))
        process.kill()
        stack.close()
        self.start()

    def close(self) -> None:
        """Stop all."""
        for stack, _, _ in self._running:
            stack.close()


def run(url: str, directory: Path, *, seconds: float, pause_s: float = 3.0, seed: int = 0) -> Findings:
    """Let it run for so long, with a kill after each pause."""
    rng = random.Random(seed)
    processes = _Processes(directory, url)
    for _ in range(PROCESSES):
        processes.start()
    database = Database(url)
    try:
        tasks = _prepare(processes.any(rng))
        stop = Event()
        kills = 0
        with ThreadPoolExecutor(CALLERS + 1) as pool:
            callers = [pool.submit(_call, processes, tasks, seed + place, stop) for place in range(CALLERS)]
            looking = pool.submit(_look, database, stop)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(rng.uniform(0.5, 1.0) * pause_s)
                processes.kill(rng)
                kills += 1
            stop.set()
            for caller in callers:
                caller.result()
            looks, overlaps = looking.result()
        service = processes.any(rng)
        rounds = {task_id: service.get(f"/tasks/{task_id}").json()["rounds"] for task_id in tasks}
        for task_id in tasks:
            service.post(f"/tasks/{task_id}/cancel").raise_for_status()
        history = {cell_id: _history(service, cell_id) for cell_id in CELLS}
        overlaps += [text for cell_id, items in history.items() for text in find_overlaps(cell_id, items)]
        with database.reading() as store:
            leaked = sum(map(len, store.allocations.held().values())) + len(store.allocations.live())
        return Findings(rounds, kills, looks, sum(map(len, history.values())), overlaps, leaked)
    finally:
        processes.close()
        database.close()


def _prepare(service: httpx.Client) -> list[str]:
    for cell_id, blocks in CELLS.items():
        body = {"cell_id": cell_id, "resource_blocks": blocks}
        service.post("/cells", json=body).raise_for_status()
        names = [f"{cell_id}-{number}" for number in range(4)]
        enrolled = {"clients": [{"client_id": name, "cell_id": cell_id} for name in names]}
        service.post("/clients/batch", json=enrolled).raise_for_status()
        reports = [{"client_id": name, "data_samples": 200, **QUICK} for name in names]
        service.post("/reports/batch", json={"reports": reports}).raise_for_status()
    tasks = []
    for terms in TASKS:
        body = {
            "round_deadline_s": 2,
            "request_fraction": 1.0,
            "model_size_bytes": 1000,
            "allow_busy_clients": True,
            **terms,
        }
        created = service.post("/tasks", json=body)
        created.raise_for_status()
        tasks.append(created.json()["task_id"])
        set_model(service, tasks[-1])
    return tasks


def _call(processes: _Processes, tasks: list[str], seed: int, stop: Event) -> None:
    """Open rounds of random tasks, and close some of them."""
    rng = random.Random(seed)
    while not stop.is_set():
        service = processes.any(rng)
        try:
            opened = service.post("/rounds", json={"task_id": rng.choice(tasks)})
            if opened.status_code == 201 and rng.random() < 0.7:
                time.sleep(rng.uniform(0.0, 0.5))
                service.post(f"/rounds/{opened.json()['round_id']}/close")
            elif opened.status_code != 201:
                assert opened.json()["cause"] in {"RESOURCE_BLOCKS_BUSY", "ROUND_OPEN", "NOT_READY"}, (
                    opened.text
                )
        except (httpx.TransportError, RuntimeError):
            pass  # its process was killed
        time.sleep(rng.uniform(0.0, 0.2))


def _look(database: Database, stop: Event) -> tuple[int, list[str]]:
    """Compare live allocations with one another and with the blocks that are held, again and again."""
    looks, wrong = 0, []
    while not stop.wait(0.2):
        with database.reading() as store:
            live = store.allocations.live()
        blocks = [
            (item.cell_id, block)
            for item in live
            for block in range(
                item.resource_block_first, item.resource_block_first + item.resource_block_count
            )
        ]
        if len(set(blocks)) < len(blocks):
            wrong.append(f"live allocations overlap: {live}")
        with database.transaction(writing=False) as connection:
            held = connection.execute(select(func.count()).select_from(held_blocks)).scalar_one()
            counted = select(func.coalesce(func.sum(allocations.c.resource_block_count), 0))
            now_live = connection.execute(counted.where(allocations.c.held_until.is_(None))).scalar_one()
        if held != now_live:
            wrong.append(f"{held} rows of held blocks for {now_live} blocks of live allocations")
        looks += 1
    return looks, wrong


def _history(service: httpx.Client, cell_id: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    page = 1
    while found := service.get(
        f"/cells/{cell_id}/allocations", params={"per_page": 100, "page": page}
    ).json():
        items += found
        page += 1
    return items


def find_overlaps(cell_id: str, items: list[dict[str, Any]]) -> Iterator[str]:
    """Pairs that had a block in common at the same time."""
    for item, other in combinations(items, 2):
        first, second = item["resource_block_first"], other["resource_block_first"]
        share_blocks = (
            first < second + other["resource_block_count"] and second < first + item["resource_block_count"]
        )
        share_time = item["held_from"] < other["held_until"] and other["held_from"] < item["held_until"]
        if share_blocks and share_time:
            yield f"{cell_id}: {item} and {other}"


@contextmanager
def database_of(kind: str, directory: Path) -> Iterator[str]:
    """A new database of a kind, with a server of its own if it needs one."""
    if kind == "sqlite":
        yield new_database(kind, directory, "")
        return
    with postgres_server() as server:
        yield new_database(kind, directory, server)


def main() -> None:
    """Run it and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--database", choices=KINDS, default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-blocks-") as directory,
        database_of(given.database, Path(directory)) as url,
    ):
        found = run(url, Path(directory), seconds=given.seconds, seed=given.seed)
    print(found)
    found.check()


if __name__ == "__main__":
    main()
