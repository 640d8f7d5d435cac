"""Logging: structlog on standard error, for people at a terminal, JSON for machines."""

import logging
import sys
from typing import Literal, TextIO

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "console", "json"]


def configure_logging(level: Level, form: Format, *, stream: TextIO | None = None) -> None:
    """Set up structlog for the process.

    Args:
        level: least level that is logged.
        form: ``auto`` is ``console`` at a terminal and ``json`` elsewhere.
        stream: where to, standard error by default.
    """
    out = stream or sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if console else [structlog.processors.dict_tracebacks]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
