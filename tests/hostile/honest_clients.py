"""Honest clients in a process of their own, so that nothing but the service makes them wait.

Reads one line of JSON, ``{"url": …, "round_id": …, "keys": {client_id: key}}``, and goes on until standard
input ends; then prints, for every request, when it began (on the clock of ``time.monotonic``, which all
processes share), how long it took, and its status.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from subprocess import PIPE, Popen

import httpx

from tests.integration.cell import resources

_PACE_S = 0.1
"""Between two requests of one client."""


@dataclass(frozen=True)
class Sample:
    """One request of an honest client; the status is 0 if there was no answer."""

    began_s: float
    took_s: float
    status: int


@contextmanager
def honest_clients(url: str, round_id: str, keys: dict[str, str]) -> Iterator[list[Sample]]:
    """Have them ask all the time; the list is filled when this is left."""
    samples: list[Sample] = []
    arguments = [sys.executable, "-m", "tests.hostile.honest_clients"]
    with Popen(arguments, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"url": url, "round_id": round_id, "keys": keys}) + "\n")
        process.stdin.flush()
        yield samples
        printed, _ = process.communicate()
        samples += [Sample(*sample) for sample in json.loads(printed)]


def _live(
    url: str, round_id: str, client_id: str, key: str, ended: threading.Event, samples: list[Sample]
) -> None:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        requests = cycle(
            [
                client.build_request("POST", "/reports", json=resources(client_id)),
                client.build_request("GET", "/assignments?wait_s=0"),
                client.build_request("GET", f"/rounds/{round_id}/model"),
            ]
        )
        while not ended.wait(_PACE_S):
            began_s = time.monotonic()
            try:
                status = client.send(next(requests)).status_code
            except httpx.TransportError:
                status = 0
            samples.append(Sample(began_s, time.monotonic() - began_s, status))


def main() -> None:
    """Live as many lives as there are keys, until told to end."""
    given = json.loads(sys.stdin.readline())
    ended = threading.Event()
    samples: list[Sample] = []
    lives = [
        threading.Thread(target=_live, args=(given["url"], given["round_id"], *client, ended, samples))
        for client in given["keys"].items()
    ]
    for life in lives:
        life.start()
    sys.stdin.read()
    ended.set()
    for life in lives:
        life.join()
    print(json.dumps([(sample.began_s, sample.took_s, sample.status) for sample in samples]))


if __name__ == "__main__":
    main()
