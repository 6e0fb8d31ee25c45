"""The server's log: its own lines, and the lines that its workers send.

In:  `info`, `warning`, `error` and `verbose`, from anywhere in the server process; `emit` for a
     line that was written elsewhere; `printed` for a line that a model wrote to stdout or stderr.
Out: INFO goes to stdout, WARNING and ERROR go to stderr, or everything goes to --log-file. The
     thread of naiad.log.writer does the writing.
Rule: logging never blocks and never raises. A level that is off costs one comparison. Messages
      never contain headers, keys or tensor data. Failures that repeat are counted (repeats.py).
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from naiad.log.line import (
    ERROR,
    INFO,
    VERBOSE,
    WARNING,
    escape_control,
    head,
    indented,
    json_line,
    printed_head,
    quote,
)
from naiad.log.repeats import Repeats
from naiad.log.writer import LogWriter

MAX_MESSAGE_CHARS = 1 << 20


class LogSettings(msgspec.Struct):
    """The settings that /v2/logging shows and changes while the server runs."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"
    log_json: bool = False
    should_escape: bool = True
    """False if TRITON_SERVER_ESCAPE_LOG_MESSAGES=0. JSON lines are always escaped."""
    node: str = ""
    replica: str = ""
    """Fields of JSON lines: where the process runs in a cluster, and its name there."""


class Line(NamedTuple):
    """A line of the log, for `observe`."""

    time_ns: int
    severity: str
    origin: str
    """The file and the line of code that logged it, or the instance whose model printed it."""
    message: str


FORMATS = ("default", "ISO8601")
MAX_VERBOSE_LEVEL = 2**31 - 1
SHOWN = ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format")
settings = LogSettings()
_file_descriptor = -1
_on_line: Callable[[Line], None] | None = None


def observe(on_line: Callable[[Line], None] | None) -> None:
    """Calls `on_line` with every line that is written from now on, from any thread. It must not
    log, block or raise."""
    global _on_line
    _on_line = on_line


def configure(new: LogSettings) -> None:
    """Applies the settings of the command line.

    As in Triton, a log file that cannot be opened is only a warning, and the log goes to the
    console.
    """
    global settings, _file_descriptor
    _reserve_standard_descriptors()
    settings = new
    if _file_descriptor >= 0:
        # The descriptor stays open while lines wait to be written to it: otherwise its number
        # could become a client's socket.
        if _writer.flush():
            os.close(_file_descriptor)
        _file_descriptor = -1
    if new.log_file:
        try:
            _file_descriptor = _open(new.log_file)
        except OSError as failure:
            warning(
                f"cannot write the log file '{new.log_file}': {failure.strerror}; "
                "logging to the console"
            )


def reopen() -> None:
    """Opens the log file by its name again, after it was moved away (log rotation).

    Raises OSError, and then goes on with the old file.
    """
    global _file_descriptor
    if not settings.log_file:
        return
    new = _open(settings.log_file)
    if _file_descriptor < 0:
        _file_descriptor = new
        return
    # The number stays the same, so that lines which wait to be written reach the new file.
    os.dup2(new, _file_descriptor, inheritable=False)
    os.close(new)


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def shown_settings() -> dict[str, str | bool | int]:
    """Returns the settings that the logging extension shows, in Triton's order."""
    return {name: getattr(settings, name) for name in SHOWN}


def update(changes: Mapping[str, str | bool | int]) -> None:
    """Applies validated changes. The log file cannot change while the server runs."""
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


def error(message: str, details: str = "", *, request_id: str = "") -> None:
    """`details` are further lines, such as a traceback, that are printed as they are below the
    message."""
    if settings.log_error:
        _put(ERROR, message, request_id, details)


def verbose(level: int, message: str, *, request_id: str = "") -> None:
    """Call `is_verbose` first if the message is expensive to build."""
    if level <= settings.log_verbose_level:
        _put(VERBOSE, message, request_id)


def is_verbose(level: int) -> bool:
    return level <= settings.log_verbose_level


def is_private() -> bool:
    """False if the lines go to a file that other users may read."""
    try:
        mode = os.fstat(_descriptor(INFO)).st_mode
    except OSError:
        return True
    return not (stat.S_ISREG(mode) and mode & 0o077)


def table(text: str, *, is_secret: bool = False) -> None:
    """Logs a start-up table, unquoted and on lines of its own. `observe` does not see one that is
    secret.

    naiad.tables makes sure that its cells contain no control characters.
    """
    if settings.log_json and is_secret:
        line = _text(INFO, text, __file__, 0, os.getpid(), time.time_ns())
        if settings.log_info:
            _writer.put(_descriptor(INFO), line)
    elif settings.log_json:
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
    details: str = "",
) -> None:
    """Logs a line that was written elsewhere, by a model in a worker or by a library.

    `severity` is INFO, WARNING, ERROR or VERBOSE.
    """
    if not _is_on(severity):
        return
    report_repeats()
    if severity in (WARNING, ERROR) and not _repeats.admit((severity, file, line), message):
        return
    if len(message) > MAX_MESSAGE_CHARS:
        num_cut = len(message) - MAX_MESSAGE_CHARS
        message = f"{message[:MAX_MESSAGE_CHARS]}... ({num_cut} more characters)"
    time_ns = time_ns or time.time_ns()
    _writer.put(
        _descriptor(severity),
        _text(severity, message, file, line, pid, time_ns, request_id, details),
    )
    if _on_line is not None:
        origin = f"{os.path.basename(file)}:{line}"
        _on_line(Line(time_ns, severity, origin, f"{message}\n{details}" if details else message))


def printed(instance: str, text: str, pid: int) -> None:
    """Logs one line that the worker of `instance` wrote to stdout or stderr.

    It is marked as the model's and escaped, so that it cannot pass for a line of the server. It is
    written even if INFO is off, as it was when workers wrote to the console themselves.
    """
    time_ns = time.time_ns()
    if settings.log_json:
        line = json_line(
            INFO,
            time_ns,
            pid,
            "",
            0,
            text,
            instance=instance,
            node=settings.node,
            replica=settings.replica,
        )
    else:
        start = printed_head(time_ns, pid, instance, settings.log_format)
        line = f"{start}{quote(text) if settings.should_escape else escape_control(text)}\n"
    _writer.put(_descriptor(INFO), line.encode(errors="backslashreplace"))
    if _on_line is not None:
        _on_line(Line(time_ns, INFO, instance, text))


def report_repeats(*, is_final: bool = False) -> None:
    """Logs how often failures were repeated that were only counted. The server calls this
    regularly."""
    for (severity, file, line), message in _repeats.pop_due(is_final=is_final):
        _writer.put(
            _descriptor(severity),
            _text(severity, message, file, line, os.getpid(), time.time_ns()),
        )


def flush(timeout_s: float = 1.0) -> bool:
    return _writer.flush(timeout_s)


def num_dropped() -> int:
    """Returns the number of lines lost because they came too fast or their destination failed."""
    return _writer.num_dropped


def capture_library_logging() -> None:
    """Sends the records of Python's logging here. asyncio reports unhandled errors there."""
    logging.basicConfig(
        handlers=[_LibraryHandler()],
        format="%(name)s: %(message)s",
        level=logging.WARNING,
        force=True,
    )


class _LibraryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        severity = INFO
        if record.levelno >= logging.WARNING:
            severity = ERROR if record.levelno >= logging.ERROR else WARNING
        try:
            message = self.format(record)
        except Exception:
            # Arguments that do not fit the format must not raise in the library that logged.
            message = f"a log record of '{record.name}' could not be formatted: {record.msg}"
        emit(severity, message, record.pathname, record.lineno, os.getpid())


def _put(severity: str, message: str, request_id: str, details: str = "") -> None:
    frame = sys._getframe(2)
    emit(
        severity,
        message,
        frame.f_code.co_filename,
        frame.f_lineno,
        os.getpid(),
        request_id=request_id,
        details=details,
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
    severity: str,
    message: str,
    file: str,
    line: int,
    pid: int,
    time_ns: int,
    request_id: str = "",
    details: str = "",
) -> bytes:
    details = details[:MAX_MESSAGE_CHARS]
    if settings.log_json:
        message = f"{message}\n{details}" if details else message
        text = json_line(
            severity,
            time_ns,
            pid,
            file,
            line,
            message,
            request_id,
            node=settings.node,
            replica=settings.replica,
        )
    else:
        if request_id:
            message = f"[request id: {request_id}] {message}"
        start = head(severity, time_ns, pid, file, line, settings.log_format)
        text = f"{start}{quote(message) if settings.should_escape else message}\n"
        text += indented(details)
    return text.encode(errors="backslashreplace")


def _describe_loss(count: int) -> bytes:
    message = f"{count} log messages were dropped: they came faster than they could be written"
    return _text(WARNING, message, __file__, 0, os.getpid(), time.time_ns())


def _reserve_standard_descriptors() -> None:
    """Opens /dev/null for standard descriptors that are closed.

    Otherwise the next socket would get the number of stdout, and the log would be written to it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


_writer = LogWriter(_describe_loss)
_repeats = Repeats(time.monotonic)
