"""Errors on the wire: RFC 9457 problem details, with a machine-readable cause."""

from pydantic import BaseModel, Field

PROBLEM_MEDIA_TYPE = "application/problem+json"


class InvalidParam(BaseModel):
    """One thing that is wrong with a request."""

    param: str = Field(description="A JSON pointer into the body, or the name of a parameter.")
    reason: str


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    cause: str = Field(description="For programs: SCREAMING_SNAKE, stable between releases.")
    invalid_params: list[InvalidParam] = Field(
        default=[], description="What to mend in the request, the first 20 of them."
    )
