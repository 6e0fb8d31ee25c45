"""Where a `$ref` of a JSON schema leads: a place inside the same schema, by its JSON pointer (RFC
6901) after the `#`."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from naiad.errors import invalid_arg


def find_reference(root: Any, pointer: Any, path: str) -> Any:
    """`path`: where in the schema it stands, for the words of the error. Raises NaiadError."""
    if not isinstance(pointer, str) or not re.match(r"#(/|$)", pointer):
        raise invalid_arg(
            f"'$ref' at '{path}' of the schema is {json.dumps(pointer)[:80]}, expected a place inside it ('#/...')"
        )
    found = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise invalid_arg(
                f"'$ref' at '{path}' of the schema is '{pointer}', and there is no such place in it that could be used"
            )
        found = found[name]
    return found
