"""What routes ask for, as annotated types."""

from typing import Annotated

from fastapi import Depends, Request

from services.settings import Settings


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


SettingsDep = Annotated[Settings, Depends(_settings)]
