"""What the OpenAPI document says beyond what FastAPI derives: problems, with an example for each cause."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from services.contract.problems import PROBLEM_MEDIA_TYPE, InvalidParam, Problem

Responses = dict[int | str, dict[str, Any]]

UNAUTHENTICATED = Problem(
    title="Unauthorized",
    status=401,
    cause="UNAUTHENTICATED",
    detail="Send the header Authorization: Bearer KEY with an operator key.",
)
BODY_TOO_LARGE = Problem(
    title="Request Entity Too Large",
    status=413,
    cause="BODY_TOO_LARGE",
    detail="The body is larger than 67108864 bytes.",
)
MALFORMED_JSON = Problem(
    title="Bad Request",
    status=400,
    cause="MALFORMED_JSON",
    detail="The body is not JSON: Expecting value at character 0.",
)
UNSUPPORTED_MEDIA_TYPE = Problem(
    title="Unsupported Media Type",
    status=415,
    cause="UNSUPPORTED_MEDIA_TYPE",
    detail="Send JSON, with the header Content-Type: application/json.",
)
INVALID_REQUEST = Problem(
    title="Unprocessable Entity",
    status=422,
    cause="INVALID_REQUEST",
    detail="/candidates/0/throughput_bps: Input should be greater than 0.",
    invalid_params=[
        InvalidParam(param="/candidates/0/throughput_bps", reason="Input should be greater than 0")
    ],
)
SCHEDULE_TOO_LONG = Problem(
    title="Unprocessable Entity",
    status=422,
    cause="SCHEDULE_TOO_LONG",
    detail="the 2 clients that 'fl' takes would need more than 18 years to upload",
)
NOT_READY = Problem(
    title="Service Unavailable",
    status=503,
    cause="NOT_READY",
    detail="disk: 1048576 bytes free, 268435456 wanted",
)


def problems(*examples: Problem) -> Responses:
    """Response documentation for these problems, grouped by status."""
    responses: Responses = {}
    for example in examples:
        documented = responses.setdefault(
            example.status,
            {
                "description": HTTPStatus(example.status).phrase,
                "content": {
                    PROBLEM_MEDIA_TYPE: {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        examples_by_cause = documented["content"][PROBLEM_MEDIA_TYPE]["examples"]
        examples_by_cause[example.cause] = {"value": example.model_dump()}
    return responses


def install_openapi(app: FastAPI) -> None:
    """Add the schema that ``problems`` refers to."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        document = derive()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= schema.pop("$defs")
        schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
