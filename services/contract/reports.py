"""``/reports``: what clients tell about their resources."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from services.contract.common import (
    CellId,
    ClientId,
    DataSamples,
    Rate,
    ResourceBlocks,
    TaskId,
    Timestamp,
    request_config,
    response_config,
    whole_if_integral,
)
from services.domain.resources import REPORT_RESOURCE_BLOCKS

MAX_BATCH = 10_000

_INTEGRAL = BeforeValidator(whole_if_integral)
_MEASUREMENTS = {"ul_nongbr_throughput_ue", "sinr", "rsrp"}

_EXAMPLE: dict[str, Any] = {
    "client_id": "c1",
    "throughput_bps": 1_400_000,
    "compute_samples_per_s": 50,
    "data_samples": 500,
}


class ReportRequest(BaseModel):
    """One client's resources: its uplink, its processor, its data. Outside the limits of the service: 422.

    The uplink is `throughput_bps`, or else follows from the first of these radio measurements (ETSI MEC 012)
    that is given: `ul_nongbr_throughput_ue`, `sinr`, `rsrp`. One of the four is required.
    """

    model_config = request_config(_EXAMPLE)

    client_id: ClientId
    throughput_bps: Rate | None = Field(default=None, description="Average uplink throughput in bit/s.")
    compute_samples_per_s: Rate = Field(description="Samples it can train on in a second.")
    data_samples: DataSamples = Field(description="Samples it holds. A client with none is never selected.")
    observed_at: Timestamp | None = Field(
        default=None,
        description="When it was measured; by default, or if in the future, the time of arrival.",
    )
    task_id: TaskId | None = Field(
        default=None, description="The report is valid for this task only; by default for all tasks."
    )
    cell_id: CellId | None = Field(
        default=None, description="The cell it is in now; it is in that cell in rounds that open from now on."
    )
    report_resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS, description="Resource blocks that the throughput refers to."
    )
    ul_nongbr_throughput_ue: Annotated[int, Field(ge=1, le=10**9), _INTEGRAL] | None = Field(
        default=None, description="MEC 012: uplink throughput of non-GBR traffic, in kbit/s."
    )
    sinr: Annotated[int, Field(ge=0, le=127), _INTEGRAL] | None = Field(
        default=None,
        description="MEC 012: RS-SINR as reported by the terminal, 0 (below -23 dB) to 127 (40 dB).",
    )
    rsrp: Annotated[int, Field(ge=0, le=97), _INTEGRAL] | None = Field(
        default=None,
        description="MEC 012: RSRP as reported by the terminal, 0 (below -140 dBm) to 97 (-44 dBm).",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.throughput_bps is None and self.radio() is None:
            raise PydanticCustomError(
                "no_throughput",
                "Report throughput_bps, or a radio measurement that it follows from",
                {"within": ("throughput_bps",)},
            )
        return self

    def radio(self) -> dict[str, Any] | None:
        """The radio measurements that came with it."""
        if self.ul_nongbr_throughput_ue is None and self.sinr is None and self.rsrp is None:
            return None
        return self.model_dump(include=_MEASUREMENTS, exclude_none=True)


class ReportBatchRequest(BaseModel):
    """Many clients' resources."""

    model_config = request_config({"reports": [_EXAMPLE]})

    reports: Annotated[list[ReportRequest], Field(min_length=1, max_length=MAX_BATCH)]


class ReportResponse(BaseModel):
    """A report as it is kept."""

    model_config = response_config(
        {
            **_EXAMPLE,
            "task_id": None,
            "report_resource_blocks": 10,
            "observed_at": "2026-01-01T12:00:00Z",
            "received_at": "2026-01-01T12:00:00Z",
            "radio": None,
            "cell_id": None,
        }
    )

    client_id: ClientId
    task_id: TaskId | None
    throughput_bps: float
    compute_samples_per_s: float
    data_samples: int
    report_resource_blocks: int
    observed_at: Timestamp
    received_at: Timestamp
    radio: dict[str, int] | None = Field(description="The radio measurements that came with it.")
    cell_id: CellId | None = Field(description="The cell that it says its client is in.")


class ReportResult(TypedDict):
    """What became of one report of a batch."""

    client_id: ClientId
    cause: Annotated[
        str | None,
        Field(
            description="Null: it is kept. Else `CLIENT_NOT_FOUND`, `TASK_NOT_FOUND` or "
            "`CELL_NOT_FOUND`: it is not."
        ),
    ]


class ReportBatchResponse(BaseModel):
    """What became of each report, in the order sent."""

    model_config = response_config(
        {
            "stored": 1,
            "results": [
                {"client_id": "c1", "cause": None},
                {"client_id": "c9", "cause": "CLIENT_NOT_FOUND"},
            ],
        }
    )

    stored: int
    results: Annotated[list[ReportResult], Field(max_length=MAX_BATCH)]
