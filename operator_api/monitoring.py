"""Prometheus metrics.

States are counted in the database at each scrape, so every process reports the same values; requests and
updates are counted in the process that handles them.
"""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.domain.jobs import JobKind
from services.protocol.candidates import implausible_share
from services.storage.database import Database

_CHANNEL_DECISIONS = ("granted", "lapsed", "refused", "replaced")


class Monitoring:
    """The metrics of this process, and those of the service."""

    def __init__(self, database: Database) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_States(database))
        ProcessCollector(registry=self._registry)
        self._updates = Counter(
            "fedcs_updates", "Updates by what became of them.", ["outcome"], registry=self._registry
        )
        for outcome in ("received", "repeated", "late", "rejected", "declined"):
            self._updates.labels(outcome)
        self._bytes_saved = Counter(
            "fedcs_upload_bytes_saved",
            "Bytes that encodings saved.",
            registry=self._registry,
        )
        self._upload_bytes = Counter(
            "fedcs_upload_bytes", "Bytes of accepted updates.", registry=self._registry
        )
        self._lateness = Histogram(
            "fedcs_slot_lateness_seconds",
            "By how much uploads ended after their slots; 0 for those in time.",
            buckets=(0, 0.1, 1, 5, 10, 30, 60, 300),
            registry=self._registry,
        )
        self._expiries = Counter(
            "fedcs_lease_expiries", "Jobs whose worker was not heard of.", ["kind"], registry=self._registry
        )
        for kind in JobKind:
            self._expiries.labels(kind.value)
        self._channel = Counter(
            "fedcs_channel_decisions",
            "Decisions about the channel: granted, lapsed, refused, replaced.",
            ["decision"],
            registry=self._registry,
        )
        for decision in _CHANNEL_DECISIONS:
            self._channel.labels(decision)
        database.add_event_listener(self._count_decisions)
        self._requests = Histogram(
            "fedcs_http_request_seconds",
            "Time to answer.",
            ["method", "route", "status"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)

    def update_received(self, size_bytes: int, model_size_bytes: int, lateness_s: float) -> None:
        """An update to a model of this size was accepted."""
        self._bytes_saved.inc(max(model_size_bytes - size_bytes, 0))
        self._updates.labels("received").inc()
        self._upload_bytes.inc(size_bytes)
        self._lateness.observe(max(lateness_s, 0.0))

    def update_not_received(self, outcome: str) -> None:
        """An update was ``repeated``, ``late`` or ``rejected``, or its slot ``declined``."""
        self._updates.labels(outcome).inc()

    def _count_decisions(self, events: Counts[str]) -> None:
        """Decisions about the channel were committed by this process."""
        for decision in _CHANNEL_DECISIONS:
            self._channel.labels(decision).inc(events[f"channel.{decision}"])

    def lease_expired(self, kind: JobKind) -> None:
        """The lease of a worker expired."""
        self._expiries.labels(kind.value).inc()

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(method, route, str(status)).observe(seconds)


class _States(Collector):
    """Reads the counts from the database at each scrape."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        with self._database.reading() as store:
            counts = store.counts.take()
            implausible = implausible_share(store)
            oldest = store.jobs.oldest_unpublished()
            cells, held = store.cells.all(), store.allocations.held()
            waiting = store.waiting_tasks.all(self._database.now())
        yield _by("fedcs_rounds", "Rounds by state.", "state", counts.rounds)
        yield _by("fedcs_tasks", "Tasks by state.", "state", counts.tasks)
        yield _by("fedcs_jobs", "Jobs by state.", "state", counts.jobs)
        yield _by("fedcs_open_slots", "Slots of open rounds by outcome.", "outcome", counts.open_slots)
        yield _by(
            "fedcs_open_candidates",
            "Candidates of open rounds by outcome.",
            "outcome",
            counts.open_candidates,
        )
        yield GaugeMetricFamily(
            "fedcs_implausible_clients_ratio",
            "Share of the clients whose newest report is implausible, in a sample.",
            implausible,
        )
        yield _by(
            "fedcs_model_accuracy", "Of each task's newest evaluated model.", "task_id", counts.accuracy
        )
        yield GaugeMetricFamily("fedcs_clients", "Enrolled clients.", counts.clients)
        yield CounterMetricFamily(
            "fedcs_selected_clients", "Clients selected in all rounds.", counts.selected
        )
        blocks = {cell.cell_id: float(cell.resource_blocks) for cell in cells}
        yield _by("fedcs_resource_blocks", "Resource blocks of each cell.", "cell_id", blocks)
        blocks = {cell.cell_id: float(len(held.get(cell.cell_id, ()))) for cell in cells}
        yield _by("fedcs_resource_blocks_held", "Resource blocks that open rounds hold.", "cell_id", blocks)
        yield GaugeMetricFamily(
            "fedcs_tasks_waiting_for_blocks", "Tasks that wait for resource blocks.", len(waiting)
        )
        since = min((task.since for task in waiting), default=self._database.now())
        yield GaugeMetricFamily(
            "fedcs_longest_block_wait_seconds",
            "How long the task that has waited longest has waited for resource blocks.",
            max((self._database.now() - since).total_seconds(), 0.0),
        )
        age_s = 0.0 if oldest is None else (self._database.now() - oldest).total_seconds()
        yield GaugeMetricFamily(
            "fedcs_oldest_unpublished_job_seconds", "How long it has waited for the broker.", age_s
        )


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
