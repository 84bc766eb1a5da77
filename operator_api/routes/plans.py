"""``POST /plans``: a stateless what-if."""

from fastapi import APIRouter, Response

from operator_api.dependencies import ServiceDep
from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.planning import plan_round
from operator_api.security import Access, AuthenticatedRoute, access
from services.contract.plans import PlanRequest, PlanResponse
from services.errors import ServiceBusyError

router = APIRouter(tags=["planning"], route_class=AuthenticatedRoute)


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
