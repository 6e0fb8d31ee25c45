"""The text of one log line: in one of Triton's two formats, or as JSON.

Everything here is a pure function of the line's parts. Times are UTC in every format, as in Triton.
Rule: a message is always one line without control characters. Only details have further lines;
      these are indented, so that none of them looks like a line of the log.
"""

from __future__ import annotations

import re
import time

import msgspec

INFO, WARNING, ERROR, VERBOSE = "INFO", "WARNING", "ERROR", "VERBOSE"


class LogLine(msgspec.Struct):
    time: str
    severity: str
    pid: int
    file: str
    line: int
    message: str
    request_id: str | msgspec.UnsetType = msgspec.UNSET
    instance: str | msgspec.UnsetType = msgspec.UNSET
    """The instance whose model printed the line; `file` is empty then."""
    node: str | msgspec.UnsetType = msgspec.UNSET
    replica: str | msgspec.UnsetType = msgspec.UNSET
    """Where the process runs in a cluster, and its name there."""


_encoder = msgspec.json.Encoder()


def head(severity: str, time_ns: int, pid: int, file: str, line: int, log_format: str) -> str:
    letter = severity[0] if severity != VERBOSE else "I"
    return _head(letter, time_ns, f"{pid} {_base_name(file)}:{line}] ", log_format)


def printed_head(time_ns: int, pid: int, instance: str, log_format: str) -> str:
    """The start of a line that a model printed. No line of the server looks like it."""
    return _head("I", time_ns, f"{pid} {escape(instance)} printed] ", log_format)


def _head(letter: str, time_ns: int, origin: str, log_format: str) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    utc = time.gmtime(seconds)
    if log_format == "ISO8601":
        return f"{_iso_seconds(utc)}Z {letter} {origin}"
    date = f"{utc.tm_mon:02}{utc.tm_mday:02}"
    return f"{letter}{date} {_time_of_day(utc)}.{ns // 1000:06} {origin}"


def json_line(
    severity: str,
    time_ns: int,
    pid: int,
    file: str,
    line: int,
    message: str,
    request_id: str = "",
    instance: str = "",
    node: str = "",
    replica: str = "",
) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    stamp = f"{_iso_seconds(time.gmtime(seconds))}.{ns // 1000:06}Z"
    try:
        text = _encoder.encode(
            LogLine(
                stamp,
                severity,
                pid,
                _base_name(file),
                line,
                message,
                request_id or msgspec.UNSET,
                instance or msgspec.UNSET,
                node or msgspec.UNSET,
                replica or msgspec.UNSET,
            )
        ).decode()
        return _LATE_CONTROL.sub(_escape_character, text) + "\n"
    except UnicodeEncodeError:  # lone surrogates, as in file names that are not valid UTF-8
        return json_line(
            severity,
            time_ns,
            pid,
            _printable(file),
            line,
            _printable(message),
            _printable(request_id),
            _printable(instance),
            _printable(node),
            _printable(replica),
        )


def quote(message: str) -> str:
    """Returns a JSON string as Triton logs it: escapes in upper-case hex, letters unescaped."""
    return f'"{escape(message)}"'


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LATE_CONTROL = re.compile(r"[\x7f-\x9f]")  # valid in JSON, but terminals interpret them
_SPECIAL = re.compile(r'["\\\x00-\x1f\x7f-\x9f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    return _SPECIAL.sub(_escape_character, text)


def escape_control(text: str) -> str:
    """Escapes only the control characters, for text that is shown unquoted."""
    return _CONTROL.sub(_escape_character, text)


def indented(details: str) -> str:
    """Lines to print below a message; empty if there are none."""
    lines = details.rstrip().split("\n") if details.strip() else []
    return "".join(f"    {escape_control(line.expandtabs(4))}".rstrip() + "\n" for line in lines)


def _escape_character(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def _iso_seconds(utc: time.struct_time) -> str:
    return f"{utc.tm_year}-{utc.tm_mon:02}-{utc.tm_mday:02}T{_time_of_day(utc)}"


def _time_of_day(utc: time.struct_time) -> str:
    return f"{utc.tm_hour:02}:{utc.tm_min:02}:{utc.tm_sec:02}"


def _base_name(file: str) -> str:
    return escape(file[file.rfind("/") + 1 :])


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
