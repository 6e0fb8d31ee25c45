"""Sessions of the console: a random token in a cookie that stands for an API key.

The cookie does not contain the key, because browsers send cookies to every port of a host. A
session ends after twelve hours, when its page signs out, when the server stops, and whenever its
key is no longer valid.
Rule: only the SHA-256 of a token is kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from naiad.keys.secret import Credential, hash_secret

MAX_SESSIONS = 10_000
"""The oldest session ends when there are more."""
SESSION_S = 12 * 3600
_NAME = b"naiad_session"
_TOKEN_BYTES = 32


class Session(msgspec.Struct, frozen=True):
    credential: Credential
    end_s: float


class Sessions:
    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._sessions: dict[bytes, Session] = {}

    def open(self, credential: Credential) -> str:
        """Returns the token."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[hash_secret(token)] = Session(credential, self._clock_s() + SESSION_S)
        return token

    def find(self, session_hash: bytes) -> Session | None:
        """Returns None if there is no such session, or if it has ended."""
        session = self._sessions.get(session_hash)
        if session is not None and self._clock_s() >= session.end_s:
            self.close(session_hash)
            return None
        return session

    def close(self, session_hash: bytes) -> None:
        self._sessions.pop(session_hash, None)


def cookie_name(host: bytes) -> bytes:
    """`host` is the header of that name. Cookies are shared by all ports of a host, so the name has
    the port in it."""
    port = host.rpartition(b":")[2]
    return _NAME + (b"_" + port if port.isdigit() else b"")


def read_session(cookies: bytes, host: bytes) -> Credential | None:
    """Returns None if the cookies contain no session."""
    if _NAME not in cookies:
        return None
    name = cookie_name(host)
    for cookie in cookies.split(b";"):
        key, _, token = cookie.strip().partition(b"=")
        if key == name and token:
            return Credential("", b"", b"", hash_secret(token))
    return None
