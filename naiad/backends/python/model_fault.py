"""An exception of model code -> words for the client and lines for the log.

The client learns the exception and the functions it passed through, with bare file names; paths of
the server and addresses of its memory are taken out of the message (they have helped attackers
before). The log gets the traceback as it is.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import TracebackType

from naiad.backends.wire_text import wire_text

LOG_LINES = 20
_OWN_DIRECTORY = (
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{8,}")


def client_message(error: BaseException, server_dirs: tuple[str, ...] = ()) -> str:
    """`ValueError: bad\\n\\nAt:\\n  model.py(3): execute\\n`, innermost first, as Triton words it.
    `server_dirs`: never shown."""
    message = f"{type(error).__name__}: {_scrub(_text(error), server_dirs)}"
    places = [
        f"  {os.path.basename(frame.filename)}({frame.lineno}): {frame.name}\n"
        for frame in _model_frames(error)
    ]
    if places:
        message += "\n\nAt:\n" + "".join(reversed(places))
    return wire_text(message)


def log_lines(error: BaseException) -> str:
    """The end of the traceback."""
    lines = traceback.format_exception(type(error), error, model_traceback(error))
    return wire_text("\n".join("".join(lines).rstrip().splitlines()[-LOG_LINES:]))


def place(error: BaseException) -> tuple[str, int]:
    """File name and line of the model code that was last entered."""
    frames = _model_frames(error)
    return (
        (os.path.basename(frames[-1].filename), frames[-1].lineno or 0)
        if frames
        else ("python.py", 0)
    )


def model_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first line of model code on."""
    entry = error.__traceback__
    while entry is not None and _is_machinery(entry.tb_frame.f_code.co_filename):
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
        if not _is_machinery(frame.filename)
    ]


def _is_machinery(filename: str) -> bool:
    return filename.startswith((_OWN_DIRECTORY, "<frozen importlib"))
