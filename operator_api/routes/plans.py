"""``POST /plans``: a plan without a task; and the policies, networks and data sets that can be named."""

from fastapi import APIRouter, Response

from operator_api.dependencies import ServiceDep
from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.planning import plan_round
from operator_api.security import Access, AuthenticatedRoute, access
from services.contract.plans import PlanRequest, PlanResponse
from services.contract.registries import (
    AggregatorResponse,
    BuiltinResponse,
    PolicyResponse,
    list_aggregators,
    list_datasets,
    list_networks,
    list_policies,
)
from services.errors import ServiceBusyError

router = APIRouter(tags=["planning"], route_class=AuthenticatedRoute)
registries = APIRouter(tags=["registries"], route_class=AuthenticatedRoute)


@router.post(
    "/plans",
    summary="Plan a round",
    response_model=PlanResponse,
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, *JSON_BODY, ServiceBusyError),
)
async def create_plan(request: PlanRequest, service: ServiceDep) -> Response:
    """Select clients from the candidates given and schedule their uploads. Nothing is stored."""
    content = await service.compute.run(lambda: plan_round(request).model_dump_json())
    return Response(content, media_type="application/json")


@registries.get(
    "/policies",
    summary="List the selection policies",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_policies() -> list[PolicyResponse]:
    """The values of `policy`, each with its parameters."""
    return list_policies()


@registries.get(
    "/aggregators",
    summary="List the aggregators",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_aggregators() -> list[AggregatorResponse]:
    """The values of `aggregation`, each with its parameters."""
    return list_aggregators()


@registries.get(
    "/networks",
    summary="List the networks",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_networks() -> list[BuiltinResponse]:
    """The names that `model` may have; your own network is named as `package.module:Name`."""
    return list_networks()


@registries.get(
    "/datasets",
    summary="List the data sets",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_datasets() -> list[BuiltinResponse]:
    """The names that `dataset` may have; your own data set is named as `package.module:name`."""
    return list_datasets()
