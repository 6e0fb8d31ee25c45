"""Converts the logging options to the settings of naiad.log."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.log import LogSettings
from naiad.settings.settings import Settings


def log_settings(settings: Settings, environ: Mapping[str, str]) -> LogSettings:
    return LogSettings(
        log_file=settings.log_file,
        log_info=settings.log_info,
        log_warning=settings.log_warning,
        log_error=settings.log_error,
        log_verbose_level=settings.log_verbose,
        log_format=settings.log_format,
        log_json=settings.log_json,
        node=settings.node_name,
        replica=settings.replica_name,
        should_escape=environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0",
    )
