"""``/cells``: cells, their resource blocks and their radio, and which round holds which blocks."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from services.contract.common import (
    CellBlocks,
    CellId,
    Name,
    RoundId,
    TaskId,
    Timestamp,
    request_config,
    response_config,
)
from services.domain.cells import DEFAULT_RESOURCE_BLOCKS, CellConfig
from services.domain.radio import RadioModel

_REQUEST = ConfigDict(strict=True, extra="forbid", frozen=True)
_PRESET = RadioModel()

Decibel = Annotated[float, Field(ge=-300, le=300, allow_inf_nan=False)]
PositiveDecibel = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class CellRadio(BaseModel):
    """The radio of a cell: how throughput follows from distance, SINR or RSRP.

    The defaults are the paper's.
    """

    model_config = _REQUEST

    carrier_ghz: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = _PRESET.carrier_ghz
    transmit_power_dbm: Decibel = Field(_PRESET.transmit_power_dbm, description="Of a client.")
    antenna_gains_dbi: Decibel = Field(_PRESET.antenna_gains_dbi, description="Of both ends together.")
    noise_figure_db: PositiveDecibel = Field(_PRESET.noise_figure_db, description="Of the base station.")
    shadow_fading_db: PositiveDecibel = Field(
        _PRESET.shadow_fading_db, description="Standard deviation, for simulated clients."
    )
    snr_loss_db: PositiveDecibel = Field(_PRESET.snr_loss_db, description="Against the Shannon capacity.")
    max_bits_per_hz: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = Field(
        _PRESET.max_bits_per_hz, description="Of the best modulation."
    )
    reference_signal_dbm: Decibel = Field(
        _PRESET.reference_signal_dbm, description="Of the base station, for each resource element."
    )

    def model(self) -> RadioModel:
        """The same, for the domain."""
        return RadioModel(**self.model_dump())


_CELL: dict[str, Any] = {"cell_id": "north", "name": "North tower", "resource_blocks": 50}


class CellRequest(BaseModel):
    """A cell to be added."""

    model_config = request_config(_CELL)

    cell_id: CellId | None = Field(default=None, description="Chosen by the service if not given.")
    name: Name = Field(default="", description="For people.")
    resource_blocks: CellBlocks = Field(
        default=DEFAULT_RESOURCE_BLOCKS, description="What the cell gives to federated learning."
    )
    radio: CellRadio = CellRadio()


class CellChangeRequest(BaseModel):
    """What is to be changed of a cell; what is not given, or null, stays."""

    model_config = request_config({"resource_blocks": 25})

    name: Name | None = Field(default=None, description="For people.")
    resource_blocks: CellBlocks | None = Field(
        default=None, description="For rounds that open from now on; open rounds keep what they hold."
    )
    radio: CellRadio | None = Field(
        default=None, description="All of it: what is not given gets its default."
    )


class CellResponse(BaseModel):
    """A cell."""

    model_config = response_config(
        {**_CELL, "radio": CellRadio().model_dump(), "clients": 1000, "resource_blocks_held": 20}
    )

    cell_id: CellId
    name: str
    resource_blocks: int = Field(description="What the cell gives to federated learning.")
    radio: CellRadio
    clients: int = Field(description="How many clients are in it.")
    resource_blocks_held: int = Field(description="How many blocks open rounds hold now.")

    @classmethod
    def of(cls, cell: CellConfig, *, clients: int, held: int) -> Self:
        """A cell as it is shown."""
        radio = CellRadio(**{name: getattr(cell.radio, name) for name in CellRadio.model_fields})
        return cls(
            cell_id=cell.cell_id,
            name=cell.name,
            resource_blocks=cell.resource_blocks,
            radio=radio,
            clients=clients,
            resource_blocks_held=held,
        )


class AllocationResponse(BaseModel):
    """Resource blocks that a round holds or held."""

    model_config = response_config(
        {
            "round_id": "round-c9f0f895fb98ab91",
            "task_id": "task-8f14e45fceea167a",
            "number": 4,
            "resource_block_first": 0,
            "resource_block_count": 10,
            "held_from": "2026-01-01T12:00:00Z",
            "held_until": None,
        }
    )

    round_id: RoundId
    task_id: TaskId
    number: int = Field(description="Of the round in its task.")
    resource_block_first: int
    resource_block_count: int
    held_from: Timestamp = Field(description="When the round was opened.")
    held_until: Timestamp | None = Field(description="When it was closed; null: it holds them now.")
