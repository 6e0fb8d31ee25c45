"""Who may change the server through its console where nobody needs an API key: a page of the
server's own user.

A proxy or a port forward of that user which adds nothing to a request cannot be told from the user,
so the page must also know a token, which the server makes when it starts.
In:  the head of a request, and its connection. Out: None, or the refusal.
Rule: the token comes in a header and never in a cookie: browsers send cookies to every port.
"""

from __future__ import annotations

import hmac
import os
import pwd
import secrets
from asyncio import BaseTransport
from collections.abc import Mapping

from naiad.errors import Code, NaiadError
from naiad.keys.forwarded import forwarded_refusal, forwarding_field
from naiad.keys.secret import PAGE_HEADER
from naiad.machine.peer_user import GONE, transport_user

_TOKEN_BYTES = 16
"""A longer one would not fit into the table that the server prints at its start."""
_NO_TOKEN = (
    "only a page or a script that has the server's token may do this. Open the link that the "
    f"server printed at its start, or that 'naiad console' prints; a script sends the token as "
    f"'{PAGE_HEADER}: TOKEN'"
)


class LocalGuard:
    def __init__(self, *, only_own_user: bool = True, token: str = "") -> None:
        """`only_own_user` is False where everybody with the token may change the server. `token` is
        that of the server whose place this one takes; by default there is a new one."""
        self.token = token or secrets.token_urlsafe(_TOKEN_BYTES)
        self._only_own_user = only_own_user

    def gate(self, headers: Mapping[bytes, bytes]) -> LocalGate:
        field = forwarding_field(headers) if self._only_own_user else ""
        if field:
            return LocalGate(forwarded_refusal(field))
        shown = headers.get(PAGE_HEADER.encode(), b"")
        if not hmac.compare_digest(shown, self.token.encode()):
            return LocalGate(NaiadError(Code.PERMISSION_DENIED, _NO_TOKEN))
        return LocalGate(None, only_own_user=self._only_own_user)


class LocalGate:
    """What is known about requests with one head."""

    __slots__ = ("_only_own_user", "_refusal")

    def __init__(self, refusal: NaiadError | None, *, only_own_user: bool = True) -> None:
        self._refusal = refusal
        self._only_own_user = only_own_user

    def enter(self, peer: BaseTransport | None = None) -> NaiadError | None:
        if self._refusal is not None or not self._only_own_user:
            return self._refusal
        user = transport_user(peer)
        if user is None or user in (0, os.geteuid()):
            return None
        if user == GONE:
            return NaiadError(Code.PERMISSION_DENIED, "the client has left, so its user is unknown")
        return NaiadError(
            Code.PERMISSION_DENIED,
            f"a model is code that runs as the user {_user_name(os.geteuid())}, and this request "
            f"comes from the user {_user_name(user)}. Start the server with --api-key-file to let "
            "others deploy, or with --allow-file-override=true to let everybody who has the token",
        )

    def check(self, peer: BaseTransport | None = None) -> NaiadError | None:
        return self.enter(peer)

    def enter_fast(self, peer: BaseTransport | None = None, model_name: str = "") -> None:
        return None

    @property
    def is_current(self) -> bool:
        return False


def _user_name(user: int) -> str:
    try:
        return f"'{pwd.getpwuid(user).pw_name}'"
    except KeyError:
        return str(user)
