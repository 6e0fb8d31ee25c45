"""Why a model did not load, in one line for people.

In:  the error of a model, as the index shows it. Out: `KeyError 'TOKEN' (model.py:54)`, and the
     last line of a start that failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_REASON_CHARS = 320
"""The place and the fix stand at the end of a problem of a config."""

_PREFIXES = (
    re.compile(r"load failed for model '[^']*': "),
    re.compile(r"version \d+ is at UNAVAILABLE state: "),
    re.compile(r"(Unknown|Internal|Not found|Invalid argument|Unavailable|Unsupported): "),
)
_PLACE = re.compile(r"^  ([^\n]+)\((\d+)\): [^\n]*$", re.MULTILINE)
"""A line of `At:` in the error of a Python model, innermost first."""
_EXCEPTION = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*): (?=['\"])")


def brief_reason(message: str, model_file: str = "model.py") -> str:
    """The first line of an error, without Triton's prefixes, and where in the model it happened."""
    for prefix in _PREFIXES:
        match = prefix.match(message)
        message = message[match.end() :] if match else message
    first, _, rest = message.strip().partition("\n")
    first = _EXCEPTION.sub(r"\1 ", first.rstrip("; "), count=1)
    if len(first) > MAX_REASON_CHARS:
        first = first[: MAX_REASON_CHARS - 3] + "..."
    return first + _place(rest, model_file)


def failure_summary(failures: Mapping[str, str], num_models: int) -> str:
    """`failures` are reasons by model."""
    reasons = "; ".join(f"{name}: {brief_reason(failures[name])}" for name in sorted(failures))
    models = "model" if num_models == 1 else "models"
    return f"{len(failures)} of {num_models} {models} failed: {reasons}"


def _place(rest: str, model_file: str) -> str:
    """The innermost line of the model's own file; else the innermost line that is in a file."""
    places = [(file, line) for file, line in _PLACE.findall(rest) if not file.startswith("<")]
    own = [place for place in places if place[0] == model_file]
    for file, line in own or places:
        return f" ({file}:{line})"
    return ""
