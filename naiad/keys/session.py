"""Sessions of the console: a random token in a cookie that stands for an API key.

The cookie does not contain the key, because browsers send cookies to every port of a host, and
whoever listens there could replay it. So a session belongs to the user of this machine who opened
it, where that is known, and what changes something also needs the page's secret, which is in no
cookie. A session ends after twelve hours, when its page signs out, when the server stops, and
whenever its key is no longer valid.
Rule: only the SHA-256 of a token is kept.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable

import msgspec

from naiad.keys.secret import PAGE_HEADER, Credential, hash_secret

MAX_KEY_SESSIONS = 20
"""The key's oldest session ends when it has more."""
MAX_SESSIONS = 10_000
"""The oldest session of all ends when there are more."""
SESSION_S = 12 * 3600
_NAME = b"naiad_session"
_TOKEN_BYTES = 32


class Session(msgspec.Struct, frozen=True):
    credential: Credential
    end_s: float
    page_hash: bytes
    owner: str
    user: int | None = None
    """Whose connections may use it; None where that is not known."""


class NewSession(msgspec.Struct, frozen=True):
    token: str
    secret: str
    """What the page sends as PAGE_HEADER."""


class Sessions:
    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._sessions: dict[bytes, Session] = {}
        self._owned: defaultdict[str, dict[bytes, None]] = defaultdict(dict)
        """The sessions of each key, the oldest first."""

    def open(self, credential: Credential, owner: str, user: int | None = None) -> NewSession:
        """`owner` is the id of the key."""
        new = NewSession(secrets.token_urlsafe(_TOKEN_BYTES), secrets.token_urlsafe(_TOKEN_BYTES))
        for sessions, limit in (
            (self._owned[owner], MAX_KEY_SESSIONS),
            (self._sessions, MAX_SESSIONS),
        ):
            while len(sessions) >= limit:
                self.close(next(iter(sessions)))
        session_hash = hash_secret(new.token)
        self._sessions[session_hash] = Session(
            credential, self._clock_s() + SESSION_S, hash_secret(new.secret), owner, user
        )
        self._owned[owner][session_hash] = None
        return new

    def find(self, session_hash: bytes) -> Session | None:
        """Returns None if there is no such session, or if it has ended."""
        session = self._sessions.get(session_hash)
        if session is not None and self._clock_s() >= session.end_s:
            self.close(session_hash)
            return None
        return session

    def close(self, session_hash: bytes) -> None:
        session = self._sessions.pop(session_hash, None)
        if session is not None:
            owned = self._owned[session.owner]
            owned.pop(session_hash, None)
            if not owned:
                del self._owned[session.owner]


def cookie_name(host: bytes) -> bytes:
    """`host` is the header of that name. Cookies are shared by all ports of a host, so the name has
    the port in it."""
    port = host.rpartition(b":")[2]
    return _NAME + (b"_" + port if port.isdigit() else b"")


def read_session(
    header: Callable[[str], bytes | None], *, changes: bool = False
) -> Credential | None:
    """`header` reads a header of the request, which `changes` something. Returns None if its
    cookies contain no session."""
    cookies, host = header("cookie") or b"", header("host") or b""
    if _NAME not in cookies:
        return None
    name = cookie_name(host)
    for cookie in cookies.split(b";"):
        key, _, token = cookie.strip().partition(b"=")
        if key == name and token:
            page_hash = hash_secret(header(PAGE_HEADER) or b"") if changes else b""
            return Credential("", b"", b"", hash_secret(token), page_hash)
    return None
