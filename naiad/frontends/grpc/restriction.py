"""--grpc-restricted-protocol: groups of RPCs that need a secret in the request's metadata."""

from __future__ import annotations

import hmac

from naiad.keys.api_class import group_of
from naiad.transport.grpc.method import Method, Restrict

_PREFIX = "triton-grpc-protocol-"


def build_restriction(restricted: dict[str, tuple[str, str]]) -> Restrict | None:
    """`restricted` maps API classes to the metadata entry that they need."""
    if not restricted:
        return None

    def restrict(method: Method, metadata: dict[str, str]) -> str | None:
        secret = restricted.get(group_of(method.api))
        if secret is None:
            return None
        header = _PREFIX + secret[0]
        if hmac.compare_digest(metadata.get(header, "").encode(), secret[1].encode()):
            return None
        return f"This protocol is restricted, expecting header '{header}'"

    return restrict
