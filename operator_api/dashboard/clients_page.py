"""``/dashboard/clients`` and ``/dashboard/keys``: clients with their history, and API keys."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from operator_api.dashboard.login import local_path
from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import chosen, render
from operator_api.dashboard.setup import FRESH
from operator_api.dashboard.task_list import SearchText, polyline
from operator_api.dashboard.wording import explain
from operator_api.dependencies import PagingDep, PrincipalDep, ServiceDep
from operator_api.routes.cells import require_cells
from operator_api.routes.clients import ClientPath, enrol_all, forget_client
from operator_api.security import Access, access
from services.access import Scope
from services.contract.clients import EnrolmentRequest, KeyRequest
from services.contract.common import CellId, KeyId
from services.key_management import add_client_key, add_operator_key, revoke_client_keys, revoke_key
from services.storage.clients import Client, TrackRecord
from services.storage.database import Database, Store
from services.storage.reports import StoredReport
from services.storage.searches import (
    ClientRound,
    ClientSearch,
    ClientState,
    FoundClient,
    KeyOwner,
    Reliability,
)
from services.storage.sql import Paging

_HISTORY = 20
"""Reports and rounds of a client that are shown."""


@dataclass(frozen=True)
class ClientRow:
    """A client as the list shows it."""

    client: FoundClient | Client
    labels: dict[str, str]
    record: TrackRecord
    last_report: datetime | None
    open_round_id: str | None
    fresh_since: datetime

    @property
    def state(self) -> ClientState:
        """How recently it reported."""
        if self.last_report is None:
            return ClientState.SILENT
        return ClientState.REPORTING if self.last_report >= self.fresh_since else ClientState.STALE

    @property
    def delivered(self) -> float | None:
        """In which share of its slots that are over it delivered; none before the first."""
        record = self.record
        over = (
            record.received + record.late + record.rejected + record.missed + record.declined + record.refused
        )
        return record.received / over if over else None


def load_clients(database: Database, search: ClientSearch, paging: Paging) -> tuple[list[ClientRow], bool]:
    """The clients that are wanted, and whether there are more."""
    fresh_since = database.now() - FRESH
    with database.reading() as store:
        found = store.searches.clients(search, fresh_since, paging)
        return _rows(store, list(found.items), fresh_since), found.has_more


def _rows(store: Store, found: list[FoundClient], fresh_since: datetime) -> list[ClientRow]:
    ids, serials = [client.client_id for client in found], [client.serial for client in found]
    records = store.clients.track_records(ids)
    reports, open_rounds = store.searches.last_reports(serials), store.searches.in_open_round(ids)
    labels = store.clients.labels_of(serials)
    return [
        ClientRow(
            client,
            labels.get(client.serial, {}),
            records[client.client_id],
            reports.get(client.serial),
            open_rounds.get(client.client_id),
            fresh_since,
        )
        for client in found
    ]


def throughput_curve(reports: list[StoredReport]) -> str:
    """The throughput of a client's reports as a line, oldest first, relative to the highest."""
    values = [report.throughput_bps / report.report_resource_blocks for report in reversed(reports)]
    return polyline([value / max(values) for value in values]) if values else ""


def ratio(slot: ClientRound, what: str) -> float | None:
    """How much longer than estimated an update or an upload took; none if that is unknown."""
    actual_s, estimated_ns = getattr(slot, f"actual_{what}_s"), getattr(slot, f"{what}_ns")
    return actual_s / (estimated_ns / 1e9) if actual_s is not None and estimated_ns else None


router = APIRouter(route_class=PageRoute, include_in_schema=False)

_ANY = Annotated[str, Query(pattern="^$")]


@router.get("/dashboard/clients", openapi_extra=access(Access.READ))
def show_clients(
    request: Request,
    service: ServiceDep,
    paging: PagingDep,
    text: SearchText = "",
    cell_id: CellId | _ANY = "",
    state: ClientState | _ANY = "",
    reliability: Reliability | _ANY = "",
    sort: Annotated[str, Query(pattern="^(oldest)?$")] = "",
) -> Response:
    """The clients that are wanted."""
    search = ClientSearch(
        text.strip(),
        cell_id or None,
        ClientState(state) if state else None,
        Reliability(reliability) if reliability else None,
        newest_first=not sort,
    )
    rows, has_more = load_clients(service.database, search, paging)
    with service.database.reading() as store:
        cells = [(cell.cell_id, cell.name or cell.cell_id) for cell in store.cells.all()]
    summary = request.app.state.dashboard.health_summary.now()
    return render(
        request,
        "clients.html",
        rows=rows,
        has_more=has_more,
        page_number=paging.page,
        enrolled=summary.clients,
        search=search,
        text=text,
        cells=cells,
        state=state,
        reliability=reliability,
        sort=sort,
        query=chosen(q=text, cell_id=cell_id, state=state, reliability=reliability, sort=sort),
    )


@router.post("/dashboard/clients", openapi_extra=access(Access.MANAGE))
def enrol(request: Request, form: FormDep, service: ServiceDep) -> Response:
    """Enrol a client, and show its key this once."""
    given = {name: form[name].strip() for name in ("client_id", "cell_id") if form.get(name, "").strip()}
    pairs = [pair.partition("=") for pair in form.get("labels", "").split(",") if pair.strip()]
    labels = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        asked = EnrolmentRequest.model_validate(given | {"labels": labels})
        with service.database.unit_of_work() as uow:
            require_cells(uow, [(("cell_id",), asked.cell_id)])
            (enrolled,) = enrol_all(uow, [asked], service.database.now())
            uow.commit()
    except (ValidationError, RequestValidationError) as error:
        first = error.errors()[0]
        name = next(str(step) for step in first["loc"] if step != "body")
        raise HTTPException(422, f"{explain(name, first)}.") from error
    return _new_key(request, enrolled.client_id, enrolled.api_key)


@router.get("/dashboard/clients/{client_id}", openapi_extra=access(Access.READ))
def show_client(request: Request, client_id: ClientPath, service: ServiceDep) -> Response:
    """A client: how it is, its reports, its rounds and its keys."""
    fresh_since = service.database.now() - FRESH
    with service.database.reading() as store:
        client = store.clients.get(client_id)
        found = FoundClient(client.serial, client.client_id, client.cell_id, client.enrolled_at)
        (row,) = _rows(store, [found], fresh_since)
        reports = store.reports.page(client.serial, Paging(1, _HISTORY))
        rounds = store.searches.rounds_of_client(client_id, _HISTORY)
        keys = store.searches.keys_of_client(client.serial)
    return render(
        request,
        "client.html",
        row=row,
        client=client,
        reports=reports,
        curve=throughput_curve(list(reports.items)),
        rounds=rounds,
        ratio=ratio,
        keys=keys,
        here=_path(request, client_id),
    )


@router.post("/dashboard/clients/{client_id}/remove", openapi_extra=access(Access.MANAGE))
def remove(request: Request, client_id: ClientPath, service: ServiceDep) -> Response:
    """Remove a client, and go back to the list."""
    with service.database.unit_of_work() as uow:
        forget_client(uow, client_id, service.database.now())
        uow.commit()
    service.authenticator.forget_all()
    return RedirectResponse(request.app.state.dashboard.templates.url("/dashboard/clients"), 303)


@router.post("/dashboard/clients/{client_id}/keys", openapi_extra=access(Access.MANAGE))
def make_client_key(request: Request, client_id: ClientPath, service: ServiceDep) -> Response:
    """Make a further key for a client, and show it this once."""
    with service.database.unit_of_work() as uow:
        new, _ = add_client_key(uow, client_id, "", service.database.now())
        uow.commit()
    return _new_key(request, client_id, new.text)


@router.post("/dashboard/clients/{client_id}/keys/revoke", openapi_extra=access(Access.MANAGE))
def revoke_keys(request: Request, client_id: ClientPath, service: ServiceDep) -> Response:
    """Revoke all keys of a client."""
    with service.database.unit_of_work() as uow:
        ended = revoke_client_keys(uow, client_id, service.database.now())
        uow.commit()
    service.authenticator.forget(ended)
    return RedirectResponse(_path(request, client_id), 303)


def _new_key(request: Request, client_id: str, key: str) -> Response:
    title = f"Key of the client {client_id}"
    back = request.app.state.dashboard.templates.client_path(client_id)
    return render(request, "new_key.html", title=title, page="clients", key=key, back=back)


def _path(request: Request, client_id: str) -> str:
    templates = request.app.state.dashboard.templates
    return str(templates.url(templates.client_path(client_id)))


@router.get("/dashboard/keys", openapi_extra=access(Access.MANAGE))
def show_keys(
    request: Request,
    service: ServiceDep,
    paging: PagingDep,
    principal: PrincipalDep,
    text: SearchText = "",
    owner: KeyOwner | Annotated[str, Query(pattern="^all$")] = KeyOwner.OPERATORS,
) -> Response:
    """The keys that are wanted."""
    with service.database.reading() as store:
        found = store.searches.keys(text.strip(), KeyOwner(owner) if owner != "all" else None, paging)
    return render(
        request,
        "keys.html",
        found=found,
        page_number=paging.page,
        own_key_id=principal.key_id,
        text=text,
        owner=owner,
        owners=[("operators", "operators"), ("clients", "clients"), ("all", "all")],
        query=chosen(q=text, owner="" if owner == KeyOwner.OPERATORS else owner),
    )


@router.post("/dashboard/keys", openapi_extra=access(Access.MANAGE))
def make_key(request: Request, form: FormDep, service: ServiceDep) -> Response:
    """Make an operator key, and show its text this once."""
    try:
        given = {name: form.get(name, "").strip() for name in ("name", "scope")}
        asked = KeyRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(422, f"{explain(str(first['loc'][0]), first)}.") from error
    with service.database.unit_of_work() as uow:
        new, stored = add_operator_key(uow, Scope(asked.scope), asked.name, service.database.now())
        uow.commit()
    title = f"Key {stored.name or stored.key_id}"
    return render(request, "new_key.html", title=title, page="keys", key=new.text, back="/dashboard/keys")


@router.post("/dashboard/keys/{key_id}/revoke", openapi_extra=access(Access.MANAGE))
def end_key(
    request: Request, key_id: Annotated[KeyId, Path()], form: FormDep, service: ServiceDep
) -> Response:
    """Revoke a key, and go back to where the form was."""
    with service.database.unit_of_work() as uow:
        ended = revoke_key(uow, key_id, service.database.now())
        uow.commit()
    service.authenticator.forget(ended)
    return RedirectResponse(local_path(form.get("next", ""), request.app.state.dashboard.root), 303)
