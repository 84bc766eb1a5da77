"""Campaign files: trials in the order in which they are to run, as TOML."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client_sim.reproduction.rows import choose_rows, trials_of
from client_sim.reproduction.trial import PlannedTrial, parse_until
from client_sim.scenario import first_error
from services.errors import FedCSError


class CampaignFileError(FedCSError):
    """The campaign file is not valid."""

    cause: ClassVar[str] = "BAD_CAMPAIGN_FILE"


_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class CampaignEntry(BaseModel):
    """Rows, seeds and a stop condition; the keys are those of the options of ``fedcs reproduce``."""

    model_config = _STRICT

    dataset: list[str] = []
    setting: list[str] = []
    policy: list[str] = []
    round_minutes: list[int] = []
    uncertainty: list[float] = []
    task: dict[str, Any] = {}
    """Fields of the task that differ from the paper's experiments."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    until: list[str] = []

    def planned_trials(self) -> list[PlannedTrial]:
        """The trials, ordered by seed."""
        rows = choose_rows(
            dataset=self.dataset,
            setting=self.setting,
            policy=self.policy,
            round_minutes=self.round_minutes,
            uncertainty=self.uncertainty,
        )
        until = parse_until(self.until)
        changed = [row.with_changes(self.task) for row in rows]
        return [PlannedTrial(trial, until) for trial in trials_of(changed, self.seeds)]


class _CampaignFile(BaseModel):
    model_config = _STRICT

    trials: Annotated[list[CampaignEntry], Field(min_length=1)]


def read_campaign(path: Path) -> list[PlannedTrial]:
    """Read the trials of a campaign file, in its order."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        entries = _CampaignFile.model_validate(content).trials
    except OSError as error:
        raise CampaignFileError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CampaignFileError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise CampaignFileError(f"{path}: {first_error(error)}") from error
    planned: list[PlannedTrial] = []
    for number, entry in enumerate(entries):
        try:
            found = entry.planned_trials()
        except FedCSError as error:
            raise CampaignFileError(f"{path}: trials.{number}: {error}") from error
        if not found:
            raise CampaignFileError(f"{path}: trials.{number}: no row of the paper's tables matches")
        planned += found
    return planned
