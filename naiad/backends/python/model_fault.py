"""Turns an exception of model code into a message for the client and lines for the log.

The client gets the exception and the functions it passed through, with file names only. Paths of
the server and memory addresses are removed from the message, because attackers could use them. The
log gets the full traceback.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import TracebackType

from naiad.backends.python.wire_text import wire_text

LOG_LINES = 20
_OWN_DIRECTORY = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{8,}")


def client_message(error: BaseException, server_dirs: tuple[str, ...] = ()) -> str:
    """Returns a message such as `ValueError: bad\\n\\nAt:\\n  model.py(3): execute\\n`.

    As in Triton, the innermost function is the first. `server_dirs` are removed from the message.
    """
    message = f"{type(error).__name__}: {_scrub(_text(error), server_dirs)}"
    places = [
        f"  {os.path.basename(frame.filename)}({frame.lineno}): {frame.name}\n"
        for frame in _model_frames(error)
    ]
    if places:
        message += "\n\nAt:\n" + "".join(reversed(places))
    return wire_text(message)


def log_lines(error: BaseException) -> str:
    """Returns the last lines of the traceback."""
    lines = traceback.format_exception(type(error), error, _model_traceback(error))
    return wire_text("\n".join("".join(lines).rstrip().splitlines()[-LOG_LINES:]))


def place(error: BaseException) -> tuple[str, int]:
    """Returns the file name and line of the innermost model code."""
    frames = _model_frames(error)
    if not frames:
        return "backend.py", 0
    return os.path.basename(frames[-1].filename), frames[-1].lineno or 0


def _model_traceback(error: BaseException) -> TracebackType | None:
    """Returns the traceback, starting at the first line of model code."""
    entry = error.__traceback__
    while entry is not None and _is_naiad_code(entry.tb_frame.f_code.co_filename):
        entry = entry.tb_next
    return entry or error.__traceback__


def _text(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:
        return "<MESSAGE UNAVAILABLE>"


def _scrub(text: str, server_dirs: tuple[str, ...]) -> str:
    for directory in (*server_dirs, sys.prefix, sys.base_prefix, _OWN_DIRECTORY):
        directory = directory.rstrip(os.sep)
        if directory:
            text = text.replace(directory + os.sep, "").replace(
                directory, os.path.basename(directory)
            )
    return _ADDRESS.sub("", text)


def _model_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _is_naiad_code(frame.filename)
    ]


def _is_naiad_code(filename: str) -> bool:
    return filename.startswith((_OWN_DIRECTORY, "<frozen importlib"))
