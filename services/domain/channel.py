"""Granting the channel of a cell: who uploads next, whose grant lapses, who is refused, who replaces whom."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

LAPSE_FACTOR = 2
"""A grant lapses after this many times the expected upload."""
SILENCE_NS = 2_000_000_000
"""On the wall clock a grant lapses if no byte has arrived this long after it. It is also the shortest time
that an upload has."""


class ChannelState(StrEnum):
    """What the channel is to a client."""

    NOT_READY = "not_ready"
    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"


class Decision(StrEnum):
    """What was decided about a client."""

    GRANTED = "granted"
    LAPSED = "lapsed"
    REFUSED = "refused"


@dataclass(frozen=True)
class ChannelClient:
    """A client of one cell that has not uploaded yet."""

    client_id: str
    order: int
    upload_ns: int
    """Planned."""
    fresh_upload_ns: int | None = None
    """By the throughput that it sent when its update was ready."""
    is_ready: bool = False
    lapses: int = 0
    """How many of its grants have lapsed."""
    grant_expires_ns: int | None = None
    """When its grant lapses; none: it does not hold the channel."""

    @property
    def expected_upload_ns(self) -> int:
        """How long its upload is expected to take."""
        return self.upload_ns if self.fresh_upload_ns is None else self.fresh_upload_ns

    @property
    def turn(self) -> tuple[int, bool, int, int]:
        """The least is granted first.

        Shortest upload first among those that sent a throughput, then the others in planned order. Clients
        whose grant has lapsed come last.
        """
        known = self.fresh_upload_ns is not None
        return self.lapses, not known, self.expected_upload_ns if known else self.order, self.order

    def can_finish(self, at_ns: int, deadline_ns: int | None) -> bool:
        """Whether an upload that begins now would end in time; true if its throughput is not known."""
        if deadline_ns is None or self.fresh_upload_ns is None:
            return True
        return at_ns + self.fresh_upload_ns < deadline_ns


@dataclass(frozen=True)
class ChannelDecision:
    """A decision about a client, in round time."""

    decision: Decision
    client_id: str
    at_ns: int
    expires_ns: int | None = None
    """When the grant lapses."""


def dispatch(
    clients: Iterable[ChannelClient], now_ns: int, deadline_ns: int | None, *, is_wall: bool
) -> list[ChannelDecision]:
    """Decide about the channel of one cell: lapsed grants, refusals and the next grant, in this order.

    On the simulated clock a grant that has lapsed frees the channel at that moment. On the wall clock it does
    so now: a client cannot use a grant that it is told of later.
    """
    holder = next((client for client in clients if client.grant_expires_ns is not None), None)
    expires_ns = None if holder is None else holder.grant_expires_ns
    holder_id = None if holder is None else holder.client_id
    waiting = sorted(
        (client for client in clients if client.is_ready and client is not holder), key=attrgetter("turn")
    )
    decisions: list[ChannelDecision] = []

    def refuse(at_ns: int) -> None:
        for client in [client for client in waiting if not client.can_finish(at_ns, deadline_ns)]:
            waiting.remove(client)
            decisions.append(ChannelDecision(Decision.REFUSED, client.client_id, at_ns))

    at_ns = now_ns
    while True:
        if holder_id is not None and expires_ns is not None:
            if expires_ns > now_ns:
                break
            at_ns = now_ns if is_wall else expires_ns
            decisions.append(ChannelDecision(Decision.LAPSED, holder_id, at_ns))
        refuse(at_ns)
        if not waiting or (deadline_ns is not None and at_ns >= deadline_ns):
            break
        granted = waiting.pop(0)
        holder_id, expires_ns = granted.client_id, first_expiry_ns(granted, at_ns, is_wall=is_wall)
        decisions.append(ChannelDecision(Decision.GRANTED, holder_id, at_ns, expires_ns))
    refuse(now_ns)
    return decisions


def first_expiry_ns(client: ChannelClient, granted_ns: int, *, is_wall: bool) -> int:
    """When a new grant lapses; on the wall clock, unless the upload begins."""
    return granted_ns + (SILENCE_NS if is_wall else LAPSE_FACTOR * client.expected_upload_ns)


def begun_expiry_ns(client: ChannelClient, began_ns: int) -> int:
    """When a grant lapses on the wall clock after the first byte."""
    return began_ns + max(LAPSE_FACTOR * client.expected_upload_ns, SILENCE_NS)


@dataclass(frozen=True)
class ExpectedUpload:
    """An upload to come: when it may begin, and how long it takes."""

    ready_ns: int
    upload_ns: int


def finish_ns(uploads: Iterable[ExpectedUpload], free_ns: int) -> int:
    """When the last of these uploads ends if the channel is free from ``free_ns`` on."""
    for upload in sorted(uploads, key=attrgetter("ready_ns")):
        free_ns = max(free_ns, upload.ready_ns) + upload.upload_ns
    return free_ns


def best_replacement(
    candidates: Sequence[ExpectedUpload], others: Sequence[ExpectedUpload], free_ns: int, deadline_ns: int
) -> int | None:
    """The candidate with which the uploads end earliest, if they end before the deadline."""
    ends_ns = [finish_ns([*others, candidate], free_ns) for candidate in candidates]
    if not ends_ns or min(ends_ns) >= deadline_ns:
        return None
    return ends_ns.index(min(ends_ns))
