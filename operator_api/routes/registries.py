"""``GET /policies``, ``/aggregators``, ``/networks``, ``/datasets``: what a task or a plan can name."""

from fastapi import APIRouter

from operator_api.openapi import GUARDED, problems
from operator_api.security import Access, AuthenticatedRoute, access
from services.contract.registries import (
    AggregatorResponse,
    BuiltinResponse,
    PolicyResponse,
    list_aggregators,
    list_datasets,
    list_networks,
    list_policies,
)

router = APIRouter(tags=["registries"], route_class=AuthenticatedRoute)


@router.get(
    "/policies",
    summary="List the selection policies",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_policies() -> list[PolicyResponse]:
    """The values of `policy`, each with its parameters."""
    return list_policies()


@router.get(
    "/aggregators",
    summary="List the aggregators",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_aggregators() -> list[AggregatorResponse]:
    """The values of `aggregation`, each with its parameters."""
    return list_aggregators()


@router.get(
    "/networks",
    summary="List the networks",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_networks() -> list[BuiltinResponse]:
    """The names that `model` may have; your own network is named as `package.module:Name`."""
    return list_networks()


@router.get(
    "/datasets",
    summary="List the data sets",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=problems(*GUARDED),
)
def get_datasets() -> list[BuiltinResponse]:
    """The names that `dataset` may have; your own data set is named as `package.module:name`."""
    return list_datasets()
