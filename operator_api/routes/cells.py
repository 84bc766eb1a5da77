"""``/cells``: the cells of the network, and which round holds which of their resource blocks."""

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import PAGED, IdempotentRequestDep, PagingDep, ServiceDep, answer_page
from operator_api.openapi import GUARDED, JSON_BODY, links, problems, together
from operator_api.problems import invalid_field
from operator_api.security import Access, AuthenticatedRoute, access, created_at
from services.contract.cells import (
    AllocationResponse,
    CellChangeRequest,
    CellRequest,
    CellResponse,
)
from services.contract.common import CellId, Timestamp
from services.contract.tasks import TaskRequest
from services.domain.cells import CellConfig
from services.errors import (
    CellExistsError,
    CellInUseError,
    CellNotFoundError,
    IdempotencyKeyReusedError,
)
from services.storage.cells import CellChange
from services.storage.database import Store, UnitOfWork

router = APIRouter(tags=["cells"], route_class=AuthenticatedRoute)

CellPath = Annotated[CellId, Path(description="The id of a cell.")]

_THIS_CELL = {"cell_id": "$response.body#/cell_id"}


@router.post(
    "/cells",
    summary="Add a cell",
    status_code=201,
    response_model=CellResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/cells/{cell_id}"),
    responses=together(
        problems(*GUARDED, *JSON_BODY, CellExistsError, IdempotencyKeyReusedError),
        links(
            201,
            ("GET /cells/{cell_id}", _THIS_CELL),
            ("PATCH /cells/{cell_id}", _THIS_CELL),
            ("GET /cells/{cell_id}/allocations", _THIS_CELL),
            ("DELETE /cells/{cell_id}", _THIS_CELL),
        ),
    ),
)
def add_cell(body: CellRequest, idempotent: IdempotentRequestDep) -> Response:
    """Add a cell. Clients are put into it when they are enrolled, by `PATCH`, or by their reports."""

    def add(uow: UnitOfWork, now: datetime) -> CellResponse:
        cell = CellConfig(
            body.cell_id or f"cell-{secrets.token_hex(8)}",
            body.name,
            body.resource_blocks,
            body.radio.model(),
        )
        uow.cells.add(cell)
        uow.events.record("cell.added", now, cell_id=cell.cell_id)
        return CellResponse.of(cell, clients=0, held=0)

    return idempotent.answer(201, add)


@router.get(
    "/cells",
    summary="List cells",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED),
)
def list_cells(
    request: Request, response: Response, service: ServiceDep, paging: PagingDep
) -> Sequence[CellResponse]:
    """The cells, in the order of their ids."""
    with service.database.reading() as store:
        clients, held = store.cells.client_counts(), store.allocations.held()
        return answer_page(
            request,
            response,
            paging,
            store.cells.page(paging),
            lambda cell: CellResponse.of(
                cell, clients=clients.get(cell.cell_id, 0), held=len(held.get(cell.cell_id, ()))
            ),
        )


@router.get(
    "/cells/{cell_id}",
    summary="Show a cell",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, CellNotFoundError),
)
def get_cell(cell_id: CellPath, service: ServiceDep) -> CellResponse:
    """One cell."""
    with service.database.reading() as store:
        return _response(store, store.cells.get(cell_id))


@router.patch(
    "/cells/{cell_id}",
    summary="Change a cell",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, *JSON_BODY, CellNotFoundError),
)
def change_cell(cell_id: CellPath, body: CellChangeRequest, service: ServiceDep) -> CellResponse:
    """Change a cell for rounds that open from now on. Open rounds keep the resource blocks they hold."""
    change: CellChange = {}
    if body.name is not None:
        change["name"] = body.name
    if body.resource_blocks is not None:
        change["resource_blocks"] = body.resource_blocks
    if body.radio is not None:
        change["radio"] = body.radio.model()
    with service.database.unit_of_work() as uow:
        answer = _response(uow, uow.cells.change(cell_id, **change))
        uow.events.record("cell.changed", service.database.now(), cell_id=cell_id)
        uow.commit()
    return answer


@router.delete(
    "/cells/{cell_id}",
    summary="Remove a cell",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, CellNotFoundError, CellInUseError),
)
def remove_cell(cell_id: CellPath, service: ServiceDep) -> None:
    """Remove a cell without clients, with the history of its blocks. The cell `default` stays."""
    with service.database.unit_of_work() as uow:
        uow.cells.remove(cell_id)
        naming = [task for task in uow.tasks.unfinished() if cell_id in (task.terms.cells or ())]
        if naming:
            raise CellInUseError(f"The task {naming[0].task_id!r} is in the cell {cell_id!r}.")
        uow.events.record("cell.removed", service.database.now(), cell_id=cell_id)
        uow.commit()


@router.get(
    "/cells/{cell_id}/allocations",
    summary="List what rounds hold and held of a cell",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED, CellNotFoundError),
)
def list_allocations(
    cell_id: CellPath,
    request: Request,
    response: Response,
    service: ServiceDep,
    paging: PagingDep,
    begin: Annotated[
        Timestamp | SkipJsonSchema[None],
        Query(alias="from", description="Only blocks that were held after this moment."),
    ] = None,
    end: Annotated[
        Timestamp | SkipJsonSchema[None],
        Query(alias="to", description="Only blocks that were held before this moment."),
    ] = None,
) -> Sequence[AllocationResponse]:
    """Which round holds or held which resource blocks, from when to when; the oldest first."""
    with service.database.reading() as store:
        store.cells.get(cell_id)
        found = store.allocations.page(cell_id, paging, begin=begin, end=end)
    return answer_page(request, response, paging, found, AllocationResponse.model_validate)


def require_cells(store: Store, named: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Refuse a request that names a cell which does not exist, by the path of the field in its body."""
    known = {cell.cell_id for cell in store.cells.all()}
    for path, cell_id in named:
        if cell_id not in known:
            raise invalid_field(path, f"There is no cell {cell_id!r}", cell_id)


def require_task_cells(store: Store, task: TaskRequest) -> None:
    """Refuse a task whose cells do not exist, or have fewer resource blocks than it needs."""
    require_cells(store, [(("cells", place), cell_id) for place, cell_id in enumerate(task.cells or ())])
    least = task.resource_blocks if task.min_resource_blocks is None else task.min_resource_blocks
    field = "resource_blocks" if task.min_resource_blocks is None else "min_resource_blocks"
    blocks = {cell.cell_id: cell.resource_blocks for cell in store.cells.all()}
    named = blocks if task.cells is None else {cell_id: blocks[cell_id] for cell_id in task.cells}
    too_small = [cell_id for cell_id, number in named.items() if number < least]
    if too_small and (task.cells is not None or len(too_small) == len(named)):
        reason = f"The cell {too_small[0]!r} has {named[too_small[0]]} resource blocks"
        raise invalid_field((field,), reason, least)


def _response(store: Store, cell: CellConfig) -> CellResponse:
    return CellResponse.of(
        cell,
        clients=store.cells.client_counts().get(cell.cell_id, 0),
        held=len(store.allocations.held().get(cell.cell_id, ())),
    )
