"""``/trainings``: hosted local training for simulated clients."""

from pydantic import BaseModel, ConfigDict, Field

from services.contract.fields import ClientId, PartitionIndex, RoundId, Timestamp, TrainingId
from services.domain.trainings import TrainingState


class TrainingRequest(BaseModel):
    """Train in the place of a simulated client."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [{"round_id": "round-c9f0f895fb98ab91", "client_id": "c1", "partition": 17}]
        },
    )

    round_id: RoundId
    client_id: ClientId
    partition: PartitionIndex = Field(
        description="Which part of the task's data set the device holds: drawn with the task's seed and this "
        "number, of as many samples as the client reported."
    )


class TrainingResponse(BaseModel):
    """A hosted training and how far it is."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "training_id": "training-45c48cce2e2d7fbd",
                    "round_id": "round-c9f0f895fb98ab91",
                    "client_id": "c1",
                    "partition": 17,
                    "state": "waiting",
                    "created_at": "2026-01-01T12:00:00Z",
                    "ended_at": None,
                    "error": None,
                }
            ]
        },
    )

    training_id: TrainingId
    round_id: RoundId
    client_id: ClientId
    partition: int
    state: TrainingState
    created_at: Timestamp
    ended_at: Timestamp | None
    error: str | None
