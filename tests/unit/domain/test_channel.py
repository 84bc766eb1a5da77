"""Granting the channel of a cell."""

import heapq
from dataclasses import replace

import pytest

from services.domain.channel import (
    SILENCE_NS,
    ChannelClient,
    ChannelDecision,
    Decision,
    ExpectedUpload,
    begun_expiry_ns,
    best_replacement,
    dispatch,
)
from tests.plain_channel import PlainDevice, plain_uploads, random_devices

SECOND = 1_000_000_000
DEADLINE = 100 * SECOND


def _client(name: str, order: int, upload_s: int = 10, **changes: object) -> ChannelClient:
    client = ChannelClient(name, order, upload_s * SECOND, is_ready=True)
    return replace(client, **changes)  # type: ignore[arg-type]


def _decide(
    *clients: ChannelClient, at_s: int = 20, deadline_ns: int | None = DEADLINE, is_wall: bool = False
) -> list[tuple[Decision, str, int]]:
    decisions = dispatch(clients, at_s * SECOND, deadline_ns, is_wall=is_wall)
    return [(decision.decision, decision.client_id, decision.at_ns // SECOND) for decision in decisions]


def _simulated(devices: list[PlainDevice], deadline_ns: int) -> dict[int, int]:
    """The ends of uploads, as the domain function grants the channel."""
    clients = {
        str(device.order): ChannelClient(str(device.order), device.order, device.planned_ns)
        for device in devices
    }
    by_id = {str(device.order): device for device in devices}
    events = [(device.ready_ns, 2, str(device.order)) for device in devices]
    heapq.heapify(events)
    ends: dict[int, int] = {}

    def decide(at_ns: int) -> None:
        for decision in dispatch(clients.values(), at_ns, deadline_ns, is_wall=False):
            if decision.decision is Decision.REFUSED:
                del clients[decision.client_id]
            elif decision.decision is Decision.LAPSED:
                before = clients[decision.client_id]
                clients[decision.client_id] = replace(before, lapses=before.lapses + 1, grant_expires_ns=None)
            else:
                assert decision.expires_ns is not None
                clients[decision.client_id] = replace(
                    clients[decision.client_id], is_ready=False, grant_expires_ns=decision.expires_ns
                )
                end_ns = decision.at_ns + by_id[decision.client_id].upload_ns
                event = (end_ns, 0) if end_ns < decision.expires_ns else (decision.expires_ns, 1)
                heapq.heappush(events, (*event, decision.client_id))

    while events and events[0][0] < deadline_ns:
        at_ns, action, name = heapq.heappop(events)
        decide(at_ns)
        if action == 0:
            ends[int(name)] = at_ns
            del clients[name]
        elif name in clients:
            fresh_ns = by_id[name].upload_ns if by_id[name].says_throughput or action == 1 else None
            clients[name] = replace(clients[name], is_ready=True, fresh_upload_ns=fresh_ns)
        decide(at_ns)
    return ends


def test_it_agrees_with_a_plain_simulation_to_the_nanosecond() -> None:
    in_time = lapsed = 0
    for seed in range(1000):
        devices, deadline_ns = random_devices(seed)
        found = _simulated([replace(device) for device in devices], deadline_ns)
        assert found == plain_uploads(devices, deadline_ns), seed
        in_time += len(found)
        lapsed += sum(device.lapses for device in devices)
    assert in_time > 2000
    assert lapsed > 50


def test_planned_order_without_throughput() -> None:
    first, second = _client("first", 1, 50), _client("second", 2, 5)
    assert _decide(second, first) == [(Decision.GRANTED, "first", 20)]


def test_shortest_upload_first_with_throughput_then_the_others() -> None:
    silent = _client("silent", 1, 1)
    slow = _client("slow", 2, 1, fresh_upload_ns=9 * SECOND)
    fast = _client("fast", 3, 50, fresh_upload_ns=8 * SECOND)
    assert _decide(silent, slow, fast) == [(Decision.GRANTED, "fast", 20)]
    assert _decide(silent, slow) == [(Decision.GRANTED, "slow", 20)]


def test_a_client_whose_grant_lapsed_comes_last() -> None:
    assert _decide(_client("a", 1, lapses=1), _client("b", 2))[0][1] == "b"


def test_nobody_is_granted_a_channel_that_is_held() -> None:
    holder = _client("holder", 1, is_ready=False, grant_expires_ns=21 * SECOND)
    assert _decide(holder, _client("b", 2)) == []


@pytest.mark.parametrize("is_wall", [False, True])
def test_an_expired_grant_lapses(is_wall: bool) -> None:
    holder = _client("holder", 1, is_ready=False, grant_expires_ns=15 * SECOND)
    at_s = 20 if is_wall else 15
    assert _decide(holder, _client("b", 2), is_wall=is_wall) == [
        (Decision.LAPSED, "holder", at_s),
        (Decision.GRANTED, "b", at_s),
    ]


def test_grants_lapse_one_after_another_on_the_simulated_clock_only() -> None:
    clients = [
        _client("a", 1, is_ready=False, grant_expires_ns=5 * SECOND),
        _client("b", 2, 5),
        _client("c", 3, 5),
    ]
    assert [client[:2] for client in _decide(*clients)] == [
        (Decision.LAPSED, "a"),
        (Decision.GRANTED, "b"),
        (Decision.LAPSED, "b"),
        (Decision.GRANTED, "c"),
    ]
    assert [client[:2] for client in _decide(*clients, is_wall=True)] == [
        (Decision.LAPSED, "a"),
        (Decision.GRANTED, "b"),
    ]


def test_who_can_no_longer_finish_is_refused_if_the_throughput_is_known() -> None:
    late = _client("late", 1, 1, fresh_upload_ns=80 * SECOND)
    silent = _client("silent", 2, 90)
    assert _decide(late, silent) == [(Decision.REFUSED, "late", 20), (Decision.GRANTED, "silent", 20)]
    assert _decide(late, silent, deadline_ns=None) == [(Decision.GRANTED, "late", 20)]
    holder = _client("holder", 3, is_ready=False, grant_expires_ns=30 * SECOND)
    assert _decide(holder, late) == [(Decision.REFUSED, "late", 20)]


def test_nothing_is_granted_after_the_deadline() -> None:
    assert _decide(_client("a", 1), at_s=100) == []


def test_when_a_grant_lapses() -> None:
    def granted(client: ChannelClient, *, is_wall: bool) -> ChannelDecision:
        (decision,) = dispatch([client], 0, None, is_wall=is_wall)
        return decision

    assert granted(_client("a", 1, 10), is_wall=False).expires_ns == 20 * SECOND
    known = _client("a", 1, 10, fresh_upload_ns=3 * SECOND)
    assert granted(known, is_wall=False).expires_ns == 6 * SECOND
    assert granted(known, is_wall=True).expires_ns == SILENCE_NS
    assert begun_expiry_ns(known, SECOND) == 7 * SECOND
    assert begun_expiry_ns(replace(known, fresh_upload_ns=1), SECOND) == SECOND + SILENCE_NS


def test_the_candidate_replaces_with_which_the_round_ends_first() -> None:
    others = [ExpectedUpload(30, 10)]
    slow, quick, long = ExpectedUpload(50, 10), ExpectedUpload(15, 10), ExpectedUpload(0, 70)
    assert best_replacement([slow, quick, long], others, 20, 100) == 1
    assert best_replacement([long], others, 20, 100) is None
    assert best_replacement([], others, 20, 100) is None
    assert best_replacement([slow, slow], [], 20, 61) == 0
