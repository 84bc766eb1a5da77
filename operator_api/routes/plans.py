"""``POST /plans``: a stateless what-if."""

from fastapi import APIRouter, Depends

from operator_api.openapi import (
    BODY_TOO_LARGE,
    INVALID_REQUEST,
    MALFORMED_JSON,
    SCHEDULE_TOO_LONG,
    UNAUTHENTICATED,
    UNSUPPORTED_MEDIA_TYPE,
    problems,
)
from operator_api.planning import plan_round
from operator_api.security import OperatorRoute, operator_key
from services.contract.plans import PlanRequest, PlanResponse

router = APIRouter(tags=["planning"], route_class=OperatorRoute, dependencies=[Depends(operator_key)])


@router.post(
    "/plans",
    summary="Plan a round",
    responses=problems(
        MALFORMED_JSON,
        UNAUTHENTICATED,
        BODY_TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE,
        INVALID_REQUEST,
        SCHEDULE_TOO_LONG,
    ),
)
def create_plan(request: PlanRequest) -> PlanResponse:
    """Select clients from the candidates given and schedule their uploads. Nothing is stored."""
    return plan_round(request)
