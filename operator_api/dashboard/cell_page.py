"""``GET /dashboard/cell``: positions, resources and selections of the clients, and held resource blocks."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Query, Request, Response

from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import render, send_json
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from services.contract.common import CellId, TaskId
from services.domain.cells import CellConfig
from services.domain.radio import PerClient, RadioModel
from services.domain.rounds import Round, Slot
from services.domain.tasks import Task
from services.storage.cells import Allocation
from services.storage.database import Database, Store
from services.storage.reports import NO_TASK

SHOWN = timedelta(hours=1)
MAX_ALLOCATIONS = 100
"""Of the newest; a drawing of more cannot be read."""
_SECOND_NS = 1e9


def load_blocks(store: Store, cell_id: str, now: datetime) -> dict[str, Any]:
    """What is held in a cell now and was held in the last hour, in columns; times in ms since 1970."""
    cell = store.cells.get(cell_id)
    found = store.allocations.newest(cell_id, begin=now - SHOWN, most=MAX_ALLOCATIONS)
    names = {item.task_id: store.tasks.get(item.task_id).terms.name for item in found}
    slots = store.rounds.slots_in(cell_id, [item.round_serial for item in found])
    return {
        "cell_id": cell_id,
        "name": cell.name,
        "resource_blocks": cell.resource_blocks,
        "held": sum(item.resource_block_count for item in found if item.held_until is None),
        "allocations": {
            "task_id": [item.task_id for item in found],
            "task": [names[item.task_id] or item.task_id for item in found],
            "round_id": [item.round_id for item in found],
            "number": [item.number for item in found],
            "first": [item.resource_block_first for item in found],
            "count": [item.resource_block_count for item in found],
            "from_ms": [_ms(item.held_from) for item in found],
            "until_ms": [None if item.held_until is None else _ms(item.held_until) for item in found],
        },
        "slots": _slots({item.round_serial: item for item in found}, slots),
    }


def _slots(held: dict[int, Allocation], slots: list[tuple[int, Slot]]) -> dict[str, list[Any]]:
    """The planned uploads, cut off where the round freed its blocks."""
    names = ("client_id", "first", "count", "from_ms", "until_ms")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for round_serial, slot in slots:
        item = held[round_serial]
        assert item.started_at is not None, "it has slots"
        began = item.started_at + timedelta(seconds=slot.window_start_ns / _SECOND_NS)
        ended = item.started_at + timedelta(seconds=slot.window_end_ns / _SECOND_NS)
        if item.held_until is not None:
            ended = min(ended, item.held_until)
        if began < ended:
            blocks = (item.resource_block_first, item.resource_block_count)
            row = (slot.client_id, *blocks, _ms(began), _ms(ended))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return columns


def _ms(moment: datetime) -> float:
    return moment.timestamp() * 1e3


MOST_CLIENTS = 2000
"""On the map and in the distributions; beside these, the map has all that were selected, up to as many."""
_BINS = 20
_NAMED = 5
_EVER = datetime(1970, 1, 1, tzinfo=UTC)
_SLOWEST_BPS = 1.0

Serials = npt.NDArray[np.int64]


def load_cell(database: Database, task_id: str | None, cell_id: str | None) -> dict[str, Any]:
    """One cell or all, with the newest round of a task, or else of all tasks."""
    with database.reading() as store:
        cell = _cell(store, cell_id)
        task, round_ = _task_and_round(store, task_id)
        enrolled = _enrolled(store, {}, cell)
        sampled = sample(enrolled, MOST_CLIENTS)
        selected = np.empty(0, np.int64) if round_ is None else store.selections.of_round(round_.serial)
        return {
            "enrolled": len(enrolled),
            "sampled": len(sampled),
            "round": None if round_ is None else _round(round_, task, len(selected)),
            **_clients(
                store,
                task,
                sampled,
                sample(np.intersect1d(selected, enrolled, assume_unique=True), MOST_CLIENTS),
                cell,
            ),
            "fairness": None if task is None else _fairness(store, task, enrolled, cell),
            "blocks": None if cell is None else load_blocks(store, cell.cell_id, database.now()),
        }


def _cell(store: Store, cell_id: str | None) -> CellConfig | None:
    """The cell that is asked for; without one, the only cell there is."""
    if cell_id is not None:
        return store.cells.get(cell_id)
    cells = store.cells.all()
    return cells[0] if len(cells) == 1 else None


def _enrolled(store: Store, labels: Mapping[str, str], cell: CellConfig | None) -> Serials:
    return store.clients.serials_with(labels, None if cell is None else [cell.cell_id]).serials


def sample(serials: Serials, most: int) -> Serials:
    """So many of the clients, in order: always the same, and few others when some are added."""
    if len(serials) > most:
        scattered = serials.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # modulo 2**64
        serials = serials[np.argpartition(scattered, most)[:most]]
    return np.sort(serials)


def _task_and_round(store: Store, task_id: str | None) -> tuple[Task | None, Round | None]:
    if task_id is None:
        newest = store.selections.newest_round()
        return (None, None) if newest is None else (store.tasks.get(newest.task_id), newest)
    task = store.tasks.get(task_id)
    return task, store.rounds.last_of(task.serial)


def _round(round_: Round, task: Task | None, selected: int) -> dict[str, Any]:
    return {
        "task": (task and task.terms.name) or round_.task_id,
        "round_id": round_.round_id,
        "number": round_.number,
        "state": round_.state.value,
        "selected": round_.selected,
        "removed": round_.selected - selected,
    }


def _clients(
    store: Store, task: Task | None, sampled: Serials, selected: Serials, cell: CellConfig | None
) -> dict[str, Any]:
    """The map, and the distributions; those without a report are on neither."""
    shown = np.union1d(sampled, selected)
    where, reports = store.reports.newest(
        shown, NO_TASK if task is None else task.serial, observed_since=_EVER, received_since=None
    )
    reported = shown[where]
    ids = store.clients.ids_of(reported)
    of_sample = np.isin(reported, sampled)
    drawable_bps = np.maximum(reports.throughput_bps, _SLOWEST_BPS)
    return {
        "map": _map(reports.throughput_bps, [ids[serial] for serial in reported.tolist()], _radio(cell))
        | {"selected": np.isin(reported, selected).astype(int).tolist()},
        "distributions": {
            "throughput_mbps": _histogram(drawable_bps[of_sample] / 1e6, logarithmic=True),
            "compute_samples_per_s": _histogram(reports.compute_samples_per_s[of_sample]),
            "data_samples": _histogram(reports.data_samples[of_sample].astype(np.float64)),
        },
    }


def _radio(cell: CellConfig | None) -> RadioModel:
    return RadioModel() if cell is None else cell.radio


def _map(throughput_bps: PerClient, client_ids: list[str], radio: RadioModel) -> dict[str, Any]:
    """Clients report no position: the distance is derived from the throughput, the direction from the id."""
    distance_m = radio.distance_m(np.maximum(throughput_bps, _SLOWEST_BPS))
    edge_m = float(np.ceil(np.quantile(distance_m, 0.99) / 100) * 100) if client_ids else 0.0
    drawn_m = np.minimum(distance_m, edge_m)
    angle = np.array([direction(client_id) for client_id in client_ids])
    return {
        "client_id": client_ids,
        "x_m": np.round(drawn_m * np.cos(angle), 1).tolist(),
        "y_m": np.round(drawn_m * np.sin(angle), 1).tolist(),
        "throughput_mbps": (throughput_bps / 1e6).tolist(),
        "edge_m": edge_m,
        "beyond_edge": int(np.count_nonzero(distance_m > edge_m)),
    }


def direction(client_id: str) -> float:
    """Where a client is drawn, as an angle: arbitrary, and always the same."""
    return 2 * math.pi * crc32(client_id.encode()) / 2**32


def _histogram(values: PerClient, *, logarithmic: bool = False) -> dict[str, Any]:
    if not len(values):
        return {"edges": [], "clients": [], "median": None}
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = 0.9 * low, 1.1 * high or 1.0
    edges = np.geomspace(low, high, _BINS + 1) if logarithmic else np.linspace(low, high, _BINS + 1)
    counts, _ = np.histogram(values, edges)
    return {"edges": edges.tolist(), "clients": counts.tolist(), "median": float(np.median(values))}


def _fairness(store: Store, task: Task, enrolled: Serials, cell: CellConfig | None) -> dict[str, Any]:
    """How often a task has selected each of the clients that it may ask."""
    may_be_asked = _enrolled(store, task.terms.labels, cell) if task.terms.labels else enrolled
    times = np.zeros(len(may_be_asked), np.int64)
    selected, how_often = store.selections.counts(task.serial)
    known = np.isin(selected, may_be_asked)
    times[np.searchsorted(may_be_asked, selected[known])] = how_often[known]
    return {
        "rounds": task.rounds,
        "clients": len(times),
        "never": int(np.count_nonzero(times == 0)),
        "jain": jains_index(times),
        "times": _times(times),
        "most": _named(store, may_be_asked, times, np.argsort(-times, kind="stable")),
        "least": _named(store, may_be_asked, times, np.argsort(times, kind="stable")),
    }


def jains_index(times: Serials) -> float | None:
    """1 when all were selected equally often, 1/n when one of n always was; none without a selection."""
    squares = int((times**2).sum())
    return int(times.sum()) ** 2 / (len(times) * squares) if squares else None


def _times(times: Serials) -> dict[str, Any]:
    """How many clients were selected 0 times, once, …; numbers of times share a bar if there are many."""
    most = int(times.max(initial=0))
    width = most // _BINS + 1
    counts = np.bincount(times // width, minlength=most // width + 1)
    return {"from": [width * bar for bar in range(len(counts))], "width": width, "clients": counts.tolist()}


def _named(store: Store, serials: Serials, times: Serials, order: npt.NDArray[np.intp]) -> dict[str, Any]:
    first = order[:_NAMED]
    ids = store.clients.ids_of(serials[first])
    return {"client_id": [ids[serial] for serial in serials[first].tolist()], "times": times[first].tolist()}


router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_MOST_TASKS = 50


@router.get("/dashboard/cell", openapi_extra=access(Access.READ))
def show_cell(
    request: Request,
    service: ServiceDep,
    task_id: Annotated[TaskId | None, Query()] = None,
    cell_id: Annotated[CellId | None, Query()] = None,
) -> Response:
    """The frame of the page; its script fills it."""
    with service.database.reading() as store:
        cells = store.cells.all()
        if cell_id is not None:
            store.cells.get(cell_id)
        tasks = store.selections.tasks(_MOST_TASKS)
        if task_id is not None:
            chosen = store.tasks.get(task_id)
            tasks = [*tasks, *([(task_id, chosen.terms.name)] if task_id not in dict(tasks) else [])]
    return render(
        request,
        "cell.html",
        plots=True,
        tasks=tasks,
        task_id=task_id,
        cells=cells,
        cell_id=cell_id,
    )


@data.get("/dashboard/data/cell", openapi_extra=access(Access.READ))
def send_cell(
    service: ServiceDep,
    task_id: Annotated[TaskId | None, Query()] = None,
    cell_id: Annotated[CellId | None, Query()] = None,
) -> Response:
    """What the page draws, in columns."""
    return send_json(load_cell(service.database, task_id, cell_id))
