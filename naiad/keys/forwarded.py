"""Whether a proxy has passed a request on, as far as the request tells.

A proxy that adds nothing cannot be told from a client.
"""

from __future__ import annotations

from collections.abc import Iterable

from naiad.errors import Code, NaiadError

_FIELDS = frozenset(
    (
        "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip",
        "cf-connecting-ip", "x-envoy-external-address",
    )
)  # fmt: skip


def forwarding_field(names: Iterable[str | bytes]) -> str:
    """The first of a request's fields, in lower case, that a proxy has added; empty if there is
    none."""
    for name in names:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if text in _FIELDS or text.startswith(("x-forwarded-", "x-original-forwarded-")):
            return text
    return ""


def forwarded_refusal(field: str) -> NaiadError:
    """The refusal of what only clients of this machine may do."""
    return NaiadError(
        Code.PERMISSION_DENIED,
        f"the request came through a proxy, as its field '{field}' says, so nobody knows who sends "
        "it. Start the server with --api-key-file to let others do this, or with "
        "--allow-file-override=true to let everybody",
    )
