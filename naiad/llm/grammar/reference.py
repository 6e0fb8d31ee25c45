"""Resolves a `$ref` of a JSON schema: the part of the same schema that the JSON pointer (RFC 6901)
after the `#` names."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from naiad.errors import invalid_arg


def find_reference(root: Any, pointer: Any, path: str) -> Any:
    """`path` is the position of the reference, for error messages. Raises NaiadError."""
    if not isinstance(pointer, str) or not re.match(r"#(/|$)", pointer):
        raise invalid_arg(
            f"'$ref' at '{path}' of the schema is {json.dumps(pointer)[:80]}, "
            f"expected a place inside it ('#/...')"
        )
    target = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            raise invalid_arg(
                f"'$ref' at '{path}' of the schema is '{pointer}', "
                f"and there is no such place in it that could be used"
            )
        target = target[name]
    return target
