"""`pattern` of a JSON schema: refused where the grammar library would take it for something else.

Quotes, backslashes and control characters that stand alone in a pattern it does not escape, so its answers would not be JSON; in a class
with others it does. It reads past look-arounds.
"""

from __future__ import annotations

import re

from naiad.errors import invalid_arg

_SPECIAL = r'"|\\[\\"nrtfv]|\\x(?:[01][0-9a-fA-F]|22|5[cC])|\\u00(?:[01][0-9a-fA-F]|22|5[cC])|[\x00-\x1f]'
_PART = re.compile(
    rf"(?P<alone>{_SPECIAL}|\[(?:{_SPECIAL})\])|(?P<group>\(\?(?!:))|(?P<back>\\[1-9])|\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^\\]", re.DOTALL
)


def check_pattern(pattern: object, path: str) -> None:
    """Raises NaiadError."""
    if not isinstance(pattern, str):
        raise invalid_arg(f"keyword 'pattern' at '{path}' of the schema is not a text")
    for part in _PART.finditer(pattern):
        if part.lastgroup is not None:
            raise invalid_arg(f"the pattern at '{path}' of the schema has {part[0]!r}, which cannot be enforced here")
