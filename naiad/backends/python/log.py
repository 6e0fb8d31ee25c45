"""`pb_utils.Logger`: logs a model's messages in the server, with the file and line of the model."""

from __future__ import annotations

import enum
import os
import sys
from typing import ClassVar, TypeAlias

from naiad.backends.python.error import signature_error
from naiad.backends.python.instance import current
from naiad.backends.python.wire_text import as_text, wire_text


class LogLevel(enum.IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    __str__ = enum.Enum.__str__


_Level: TypeAlias = LogLevel


class Logger:
    """As in Triton, all methods are static."""

    LogLevel: ClassVar = LogLevel
    INFO: ClassVar = LogLevel.INFO
    WARNING: ClassVar = LogLevel.WARNING
    ERROR: ClassVar = LogLevel.ERROR
    VERBOSE: ClassVar = LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: _Level = LogLevel.INFO) -> None:
        if not isinstance(level, _Level):
            raise signature_error(
                "Logger.log(message: str, level: Logger.LogLevel = Logger.INFO)", message, level
            )
        _log("log", level, message)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _log("log_info", LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _log("log_warn", LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _log("log_error", LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        _log("log_verbose", LogLevel.VERBOSE, message)


def _log(function: str, level: LogLevel, message: str | bytes) -> None:
    message = as_text(message)
    if not isinstance(message, str):
        raise signature_error(f"Logger.{function}(message: str)", message)
    caller = sys._getframe(2)
    current().runtime.log(
        level.name, wire_text(message), os.path.basename(caller.f_code.co_filename), caller.f_lineno
    )
