"""The text of one log line: Triton's two formats, or JSON.

Pure functions of the line's parts; times are UTC in every format, as Triton's are.
Rule: whatever a message holds, the result is one line, and no control character reaches a terminal.
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


_encoder = msgspec.json.Encoder()


def head(severity: str, time_ns: int, pid: int, file: str, line: int, log_format: str) -> str:
    letter = severity[0] if severity != VERBOSE else "I"
    seconds, ns = divmod(time_ns, 1_000_000_000)
    t = time.gmtime(seconds)
    file = _base_name(file)
    if log_format == "ISO8601":
        return f"{_iso_seconds(t)}Z {letter} {pid} {file}:{line}] "
    return f"{letter}{t.tm_mon:02}{t.tm_mday:02} {t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}.{ns // 1000:06} {pid} {file}:{line}] "


def json_line(
    severity: str, time_ns: int, pid: int, file: str, line: int, message: str, request_id: str
) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    stamp = f"{_iso_seconds(time.gmtime(seconds))}.{ns // 1000:06}Z"
    try:
        text = _encoder.encode(
            LogLine(
                stamp, severity, pid, _base_name(file), line, message, request_id or msgspec.UNSET
            )
        ).decode()
        return _LATE_CONTROL.sub(_escape_character, text) + "\n"
    except UnicodeEncodeError:  # lone surrogates, as in file names that are not UTF-8
        return json_line(
            severity,
            time_ns,
            pid,
            _printable(file),
            line,
            _printable(message),
            _printable(request_id),
        )


def quote(message: str) -> str:
    """A JSON string as Triton's logs write it: upper-case hex, other languages' letters as they
    are."""
    return f'"{escape(message)}"'


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LATE_CONTROL = re.compile(r"[\x7f-\x9f]")  # JSON allows them, terminals obey them
_SPECIAL = re.compile(r'["\\\x00-\x1f\x7f-\x9f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    return _SPECIAL.sub(_escape_character, text)


def escape_control(text: str) -> str:
    """For text that is shown unquoted."""
    return _CONTROL.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def _iso_seconds(t: time.struct_time) -> str:
    return f"{t.tm_year}-{t.tm_mon:02}-{t.tm_mday:02}T{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}"


def _base_name(file: str) -> str:
    return escape(file[file.rfind("/") + 1 :])


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
