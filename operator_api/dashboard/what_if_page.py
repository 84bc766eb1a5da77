"""``/dashboard/what-if``: other terms, and at once the round that would be."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from operator_api.dashboard.page_route import DataRoute, FormDep, PageRoute
from operator_api.dashboard.rendering import render, send_json
from operator_api.dashboard.what_if_form import NUMBERS, WhatIfForm, read_what_if
from operator_api.dashboard.what_if_plan import MOST_SLOTS, NotPossibleError, plan_what_if
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from operator_api.service import Service
from services.domain.selection import POLICIES

router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)


@router.get("/dashboard/what-if", openapi_extra=access(Access.READ))
def show_what_if(request: Request, service: ServiceDep) -> Response:
    """The form, which the script answers; without scripts it comes back here, and the page has the answer."""
    form, found = WhatIfForm(), None
    if request.query_params:
        form, found = _answer(service, request.query_params)
    return render(
        request,
        "what_if.html",
        status=422 if form.errors else 200,
        plots=True,
        form=form,
        found=found,
        numbers=NUMBERS,
        policies=POLICIES.values(),
        most_slots=MOST_SLOTS,
    )


@data.post("/dashboard/data/what-if", openapi_extra=access(Access.READ))
def send_what_if(service: ServiceDep, given: FormDep) -> Response:
    """What the form asks for. What is wrong with it is an answer too: fields are wrong while one types."""
    form, found = _answer(service, given)
    return send_json({"errors": dict(form.errors), "found": found})


def _answer(service: Service, given: Mapping[str, str]) -> tuple[WhatIfForm, dict[str, Any] | None]:
    what_if, form = read_what_if(given)
    if what_if is None:
        return form, None
    try:
        return form, plan_what_if(service.database, what_if)
    except NotPossibleError as error:
        return replace(form, errors={error.name: str(error)}), None
