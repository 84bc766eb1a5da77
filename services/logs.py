"""Logs: one JSON object per line on standard error, or readable lines if that is a terminal."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from services.escaping import escape_unprintable

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]

_TERMINAL = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
_MULTILINE_FIELDS = {"exception", "stack"}


def set_up_logs() -> None:
    """Configure structlog, and send logs and warnings of libraries the same way."""
    on_terminal = sys.stderr.isatty()
    render: list[Any] = [
        structlog.processors.format_exc_info,
        *([_escape, _TERMINAL] if on_terminal else [structlog.processors.JSONRenderer()]),
    ]
    structlog.configure(
        processors=[*_SHARED, *render],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for quiet in ("alembic", "botocore", "httpx"):
        logging.getLogger(quiet).setLevel(logging.WARNING)


def _escape(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in untrusted values, before the terminal colours are added."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escape_unprintable(value, keep="\n" if name in _MULTILINE_FIELDS else "")
    return event
