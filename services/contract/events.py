"""``/events``: every change of state, as it happens."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from services.contract.fields import Timestamp


class EventResponse(BaseModel):
    """One event of the stream; its number is the id to resume after."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "number": 42,
                    "kind": "round.scheduled",
                    "at": "2026-01-01T12:00:00Z",
                    "task_id": "task-8f14e45fceea167a",
                    "round_id": "round-c9f0f895fb98ab91",
                    "client_id": None,
                    "data": {"number": 4, "selected": 8, "received": 0},
                }
            ]
        },
    )

    number: int
    kind: str = Field(
        description="`task.*` and `round.*` with the new state, `update.received`, `update.late`, "
        "`update.rejected`, `model.created`, `model.evaluated`, `training.*`, `job.started`, "
        "`job.progress` (`done`, from 0 to 1), `job.handed_back`, `job.failed`, `clients.enrolled`, "
        "`client.removed`, `key.revoked`."
    )
    at: Timestamp
    task_id: str | None
    round_id: str | None
    client_id: str | None
    data: dict[str, Any]
