"""Hostile load test: attacks a real service for minutes and measures what honest clients notice."""

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import click
import httpx

from tests.databases import KINDS, new_database, postgres_server
from tests.hostile.attackers import Keys, attack, evenly, request_attacks, slow_connections, upload_attacks
from tests.hostile.honest_clients import honest_clients
from tests.hostile.hostile_load_report import HostileLoad, report
from tests.hostile.raw_http import address_of
from tests.integration.cell import make_model, started_round
from tests.integration.rounds_setup import get_round, slot_of, upload_as
from tests.running_service import OPERATOR_KEY, service_process

_HONEST = 4
_HOSTILE = 20
_SLOW_CONNECTIONS = 200
_WARM_UP_S = 10.0
_QUIET_S = 30.0
_REST_S = 5.0
_TIMEOUT_S = 360.0
"""For the attacks on one service; a machine that does not get through all of them by then is too slow."""


@click.command()
@click.option("--seed", default=8, show_default=True, help="The same seed sends the same bytes.")
@click.option(
    "--database", "databases", type=click.Choice(KINDS), multiple=True, default=KINDS[:1], show_default=True
)
@click.option("--uploads", default=600, show_default=True, help="Hostile updates.")
@click.option("--requests", default=10_200, show_default=True, help="Other hostile and fuzzed requests.")
@click.option("--rate", default=50.0, show_default=True, help="Attacks per second, at most.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("docs/results/hostile.md"), show_default=True
)
def main(seed: int, databases: tuple[str, ...], uploads: int, requests: int, rate: float, out: Path) -> None:
    """Attack a service on each kind of database; fails if it does not hold."""
    loads = [_run_load(kind, seed, uploads, requests, rate) for kind in databases]
    text = report(loads)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    click.echo(text)
    if any(load.failures for load in loads):
        raise SystemExit(1)


def _run_load(kind: str, seed: int, uploads: int, requests: int, rate: float) -> HostileLoad:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcs-hostile-")))
        postgres_url = stack.enter_context(postgres_server()) if kind == "postgresql" else ""
        url = new_database(kind, directory, postgres_url)
        service, process = stack.enter_context(
            service_process(directory, directory / "api.log", database_url=url)
        )
        opened, all_keys = started_round(service, _HONEST + 2 * _HOSTILE)
        round_id = opened["round_id"]
        keys = iter(all_keys.items())
        honest, uploaders, fuzzers = (dict(islice(keys, number)) for number in (_HONEST, _HOSTILE, _HOSTILE))
        address = address_of(service)
        attacks = evenly(
            islice(upload_attacks(seed, round_id, uploaders), uploads),
            islice(request_attacks(seed, OPERATOR_KEY, round_id, fuzzers), requests),
            requests // uploads,
        )
        with honest_clients(str(service.base_url), round_id, honest) as samples:
            time.sleep(_WARM_UP_S)
            began_s = time.monotonic()
            time.sleep(_QUIET_S)
            before_mb = _resident_mb(process.pid)
            attacked_s = time.monotonic()
            with (
                _most_memory(process.pid) as memory_mb,
                slow_connections(address, _SLOW_CONNECTIONS) as closed,
            ):
                toll = attack(address, attacks, rate, _TIMEOUT_S)
            ended_s = time.monotonic()
        time.sleep(_REST_S)
        after_mb = _resident_mb(process.pid)
        _check_record(service, round_id, uploaders, toll.recorded)
        # A fuzzed request may be a valid one that declines the fuzzer's own slot.
        outcomes = {client_id: slot_of(service, round_id, client_id)["outcome"] for client_id in fuzzers}
        able = {
            client_id: key for client_id, key in all_keys.items() if outcomes.get(client_id) != "declined"
        }
        _check_models(service, directory / "models", round_id, able)
        assert "Traceback" not in (directory / "api.log").read_text(), "the log tells of a bug"
    return HostileLoad(
        database=kind,
        seed=seed,
        rate_per_s=rate,
        wanted=uploads + requests,
        duration_s=ended_s - attacked_s,
        toll=toll,
        slow_connections=_SLOW_CONNECTIONS,
        slow_closed=closed(),
        quiet=[sample for sample in samples if began_s <= sample.began_s < attacked_s],
        under_attack=[sample for sample in samples if attacked_s <= sample.began_s < ended_s],
        memory_before_mb=before_mb,
        memory_most_mb=max(*memory_mb, after_mb),
        memory_after_mb=after_mb,
    )


def _check_record(service: httpx.Client, round_id: str, uploaders: Keys, recorded: int) -> None:
    """Every update that was read and refused is named, and none counts."""
    slots = [slot_of(service, round_id, client_id) for client_id in uploaders]
    assert {slot["outcome"] for slot in slots} == {"pending"}
    assert sum(slot["rejections"] for slot in slots) == recorded


def _check_models(service: httpx.Client, models: Path, round_id: str, keys: Keys) -> None:
    """The same clients may still upload; nothing else is kept, so nothing else can get into a model."""
    model = service.get(f"/rounds/{round_id}/model").content
    updates = {client_id: make_model(number) for number, client_id in enumerate(keys, 1)}
    for client_id, update in updates.items():
        sent = upload_as(service, keys[client_id], round_id, client_id, update=update)
        assert sent.status_code == 201, sent.text
    assert get_round(service, round_id)["received"] == len(keys)
    kept = {path.read_bytes() for path in models.rglob("*") if path.is_file()}
    assert kept == {model, *updates.values()}


@contextmanager
def _most_memory(process_id: int) -> Iterator[list[float]]:
    """The memory of a process, every half second."""
    samples, ended = [_resident_mb(process_id)], threading.Event()

    def sample() -> None:
        while not ended.wait(0.5):
            samples.append(_resident_mb(process_id))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _resident_mb(process_id: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
