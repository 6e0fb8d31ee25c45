"""Request ids in JSON: the one part of a repeated header that changes.

All clients of Triton write the id first. Only ids that JSON does not escape are recognised; the
full path reads the others.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ID_AT_START = re.compile(rb'\{"id": ?"([0-9A-Za-z._:/+=@-]{1,128})"')
is_plain_id = re.compile(r"[0-9A-Za-z._:/+=@-]{1,128}").fullmatch


class SplitText(NamedTuple):
    rest: bytes
    """The text after the id; all of it when it does not begin with an id."""
    id: str
    """Empty when the text does not begin with an id."""


def split_id(text: bytes) -> SplitText:
    match = ID_AT_START.match(text)
    return (
        SplitText(text, "") if match is None else SplitText(text[match.end() :], match[1].decode())
    )


def is_only_id(split: SplitText, decoded_id: str) -> bool:
    """The id at the start is the one that a JSON parser finds: in JSON a later `id` would win."""
    return split.id == decoded_id and (
        not split.id or (b'"id"' not in split.rest and b"\\" not in split.rest)
    )
