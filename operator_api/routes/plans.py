"""``POST /plans``: a stateless what-if."""

from fastapi import APIRouter

from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.planning import plan_round
from operator_api.security import Access, GuardedRoute, access
from services.contract.plans import PlanRequest, PlanResponse
from services.errors import ScheduleTooLongError

router = APIRouter(tags=["planning"], route_class=GuardedRoute)


@router.post(
    "/plans",
    summary="Plan a round",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, *JSON_BODY, ScheduleTooLongError),
)
def create_plan(request: PlanRequest) -> PlanResponse:
    """Select clients from the candidates given and schedule their uploads. Nothing is stored."""
    return plan_round(request)
