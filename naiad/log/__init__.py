"""The server's log: its own lines, and those that its workers send.

In:  info, warning, error and verbose from anywhere in the server process; emit for a line that was
     written elsewhere.
Out: INFO to stdout, WARNING and ERROR to stderr, or all to --log-file, through the thread of
     naiad.log.writer.
Rule: logging never blocks and never raises; a level that is off costs one comparison. No headers,
      keys or tensor data in messages.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping

import msgspec

from naiad.log.line import ERROR, INFO, VERBOSE, WARNING, head, json_line, quote
from naiad.log.writer import LogWriter

MAX_MESSAGE_CHARS = 1 << 20


class LogSettings(msgspec.Struct):
    """What /v2/logging shows; fields may be changed while the server runs."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"
    log_json: bool = False
    should_escape: bool = True
    """False by TRITON_SERVER_ESCAPE_LOG_MESSAGES=0; JSON lines are always escaped."""


FORMATS = ("default", "ISO8601")
MAX_VERBOSE_LEVEL = 2**31 - 1
SHOWN = ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format")
settings = LogSettings()
_file_descriptor = -1


def configure(new: LogSettings) -> None:
    """Once at start-up. A log file that cannot be opened is a warning, and lines go to the console,
    as under Triton."""
    global settings, _file_descriptor
    _reserve_standard_descriptors()
    settings = new
    if _file_descriptor >= 0:
        # A descriptor that lines still wait for stays open: its number must not become a client's
        # socket.
        if _writer.flush():
            os.close(_file_descriptor)
        _file_descriptor = -1
    if new.log_file:
        try:
            _file_descriptor = os.open(new.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as failure:
            warning(
                f"cannot write the log file '{new.log_file}': {failure.strerror}; logging to the console"
            )


def shown_settings() -> dict[str, str | bool | int]:
    """What the logging extension shows, in Triton's order."""
    return {name: getattr(settings, name) for name in SHOWN}


def update(changes: Mapping[str, str | bool | int]) -> None:
    """Checked values of shown settings; the file is not among what may change while the server
    runs."""
    for name, value in changes.items():
        if name == "log_verbose_level":
            settings.log_verbose_level = min(int(value), MAX_VERBOSE_LEVEL)
        elif name in SHOWN and name != "log_file":
            setattr(settings, name, value)


def info(message: str, *, request_id: str = "") -> None:
    if settings.log_info:
        _put(INFO, message, request_id)


def warning(message: str, *, request_id: str = "") -> None:
    if settings.log_warning:
        _put(WARNING, message, request_id)


def error(message: str, *, request_id: str = "") -> None:
    if settings.log_error:
        _put(ERROR, message, request_id)


def verbose(level: int, message: str, *, request_id: str = "") -> None:
    """Ask `is_verbose` first where building the message costs something."""
    if level <= settings.log_verbose_level:
        _put(VERBOSE, message, request_id)


def is_verbose(level: int) -> bool:
    return level <= settings.log_verbose_level


def table(text: str) -> None:
    """A start-up table: starts on a line of its own, unquoted. Its cells hold no control characters
    (naiad.tables)."""
    if settings.log_json:
        info(text)
    elif settings.log_info:
        frame = sys._getframe(1)
        start = head(
            INFO,
            time.time_ns(),
            os.getpid(),
            frame.f_code.co_filename,
            frame.f_lineno,
            settings.log_format,
        )
        _writer.put(_descriptor(INFO), f"{start}\n{text}\n".encode(errors="backslashreplace"))


def emit(
    severity: str,
    message: str,
    file: str,
    line: int,
    pid: int,
    time_ns: int = 0,
    *,
    request_id: str = "",
) -> None:
    """A line that was written elsewhere: by a model in a worker, by a library. Severity is INFO,
    WARNING, ERROR or VERBOSE."""
    if not _is_on(severity):
        return
    if len(message) > MAX_MESSAGE_CHARS:
        message = (
            f"{message[:MAX_MESSAGE_CHARS]}... ({len(message) - MAX_MESSAGE_CHARS} more characters)"
        )
    _writer.put(
        _descriptor(severity),
        _text(severity, message, file, line, pid, time_ns or time.time_ns(), request_id),
    )


def flush(timeout_s: float = 1.0) -> bool:
    return _writer.flush(timeout_s)


def num_dropped() -> int:
    """Lines lost since the start: written too fast, or to a destination that failed."""
    return _writer.num_dropped


def capture_library_logging() -> None:
    """Sends what libraries report through Python's logging, asyncio's unhandled errors above all,
    to this log."""
    logging.basicConfig(
        handlers=[_LibraryHandler()],
        format="%(name)s: %(message)s",
        level=logging.WARNING,
        force=True,
    )


class _LibraryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        severity = (
            ERROR
            if record.levelno >= logging.ERROR
            else WARNING
            if record.levelno >= logging.WARNING
            else INFO
        )
        try:
            message = self.format(record)
        except (
            Exception
        ):  # a record whose arguments do not fit its format must not hurt who logged it
            message = f"a log record of '{record.name}' could not be formatted: {record.msg}"
        emit(severity, message, record.pathname, record.lineno, os.getpid())


def _put(severity: str, message: str, request_id: str) -> None:
    frame = sys._getframe(2)
    emit(
        severity,
        message,
        frame.f_code.co_filename,
        frame.f_lineno,
        os.getpid(),
        request_id=request_id,
    )


def _is_on(severity: str) -> bool:
    if severity == ERROR:
        return settings.log_error
    if severity == WARNING:
        return settings.log_warning
    return settings.log_verbose_level > 0 if severity == VERBOSE else settings.log_info


def _descriptor(severity: str) -> int:
    if _file_descriptor >= 0:
        return _file_descriptor
    return 2 if severity in (WARNING, ERROR) else 1


def _text(
    severity: str, message: str, file: str, line: int, pid: int, time_ns: int, request_id: str = ""
) -> bytes:
    if settings.log_json:
        text = json_line(severity, time_ns, pid, file, line, message, request_id)
    else:
        if request_id:
            message = f"[request id: {request_id}] {message}"
        start = head(severity, time_ns, pid, file, line, settings.log_format)
        text = f"{start}{quote(message) if settings.should_escape else message}\n"
    return text.encode(errors="backslashreplace")


def _describe_loss(count: int) -> bytes:
    message = f"{count} log messages were dropped: they came faster than they could be written"
    return _text(WARNING, message, __file__, 0, os.getpid(), time.time_ns())


def _reserve_standard_descriptors() -> None:
    """A server started with stdout closed must not write its log into whatever socket gets that
    number next."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


_writer = LogWriter(_describe_loss)
