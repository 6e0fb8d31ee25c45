"""The name of a model in a request to load or unload it.

Rule: the guard and the repository read such a name with the same function. If they did not, a key
      could be checked for one model and load another one.
"""

from __future__ import annotations

_WHITE_SPACE = " \t\n\v\f\r"
"""What C++ counts as white space."""


def trim_name(name: str) -> str:
    """Returns the name without the white space around it, which Triton ignores."""
    return name.strip(_WHITE_SPACE)
