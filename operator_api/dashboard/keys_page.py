"""``/dashboard/keys``: lists API keys, makes and revokes them."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from operator_api.dashboard.login import local_path
from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import chosen, render
from operator_api.dashboard.task_list import SearchText
from operator_api.dashboard.wording import explain
from operator_api.dependencies import PagingDep, PrincipalDep, ServiceDep
from operator_api.security import Access, access
from services.access import Scope
from services.contract.clients import KeyRequest
from services.contract.common import KeyId
from services.key_management import add_operator_key, revoke_key
from services.storage.searches import KeyOwner

router = APIRouter(route_class=PageRoute, include_in_schema=False)


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
