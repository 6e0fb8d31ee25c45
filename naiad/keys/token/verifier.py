"""Tells who sends a signed token (JWT) of an identity provider.

In:  the text of a token. Out: a Finding, like that of a stored key.
A verified token is kept by its hash until it expires, so that the requests after the first one cost
a look into a dict.
Rule: nothing of a token is believed before its signature has been verified with a key of the set.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any

import jwt
import msgspec

from naiad.keys.key_table import Finding
from naiad.keys.secret import Credential
from naiad.keys.token.claims import (
    ClaimError,
    TokenRules,
    check_claims,
    read_identity,
    subject_id,
)
from naiad.keys.token.key_set import KeySet, TokenKey, decode_key_set

MAX_CACHED_TOKENS = 10_000
UNKNOWN_KEY_S = 1.0
"""How long a token with an unknown key is refused without another look at the key set."""
_INVALID = "the token is not a valid JSON Web Token"


class _Header(msgspec.Struct):
    alg: str
    kid: str = ""
    crit: Any = None


class TokenVerifier:
    def __init__(self, rules: TokenRules, clock_s: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._clock_s = clock_s
        self._key_set = KeySet()
        self._verified: dict[bytes, Finding] = {}
        self._signatures = jwt.PyJWS()
        self.on_change: Callable[[], None] | None = None
        """Called when the key set has changed: what was found before may be wrong now."""
        self.on_unknown_key: Callable[[], None] | None = None
        """Called when a token names a key that the set does not have."""

    def replace(self, data: bytes) -> None:
        """Uses this key set from now on. Raises NaiadError, and then the old one stays."""
        self._key_set = decode_key_set(data)
        self._verified.clear()
        if self.on_change is not None:
            self.on_change()

    def find(self, credential: Credential) -> Finding:
        finding = self._verified.get(credential.token_hash)
        now_s = self._clock_s()
        if finding is not None:
            assert finding.valid_until_s is not None
            if now_s < finding.valid_until_s:
                return finding
            del self._verified[credential.token_hash]
        finding = self._verify(credential.signed_token, now_s)
        if finding.identity is not None:
            while len(self._verified) >= MAX_CACHED_TOKENS:
                del self._verified[next(iter(self._verified))]
            self._verified[credential.token_hash] = finding
        return finding

    def _verify(self, token: bytes, now_s: float) -> Finding:
        header = _read_header(token)
        if header is None:
            return Finding(reason=_INVALID)
        if header.crit is not None:
            return Finding(reason="the token has the header 'crit', which Naiad does not support")
        keys = self._key_set.choose(header.kid, header.alg)
        if not keys:
            return self._no_key(header, now_s)
        claims = next(filter(None, (self._claims(token, header, key) for key in keys)), None)
        if claims is None:
            return Finding(reason="the signature of the token is not valid")
        key_id = ""
        try:
            key_id = subject_id(claims, self._rules)
            end_s = check_claims(claims, self._rules, now_s)
            identity = read_identity(claims, self._rules)
        except ClaimError as error:
            return Finding(reason=error.message, key_id=key_id, valid_until_s=error.again_s)
        return Finding(identity, key_id=key_id, valid_until_s=end_s)

    def _no_key(self, header: _Header, now_s: float) -> Finding:
        if header.kid and self._key_set.has(header.kid):
            return Finding(
                reason=f"the key '{header.kid[:100]}' of the token may not be used with the "
                f"algorithm '{header.alg[:20]}'"
            )
        if not header.kid and self._key_set.keys:
            return Finding(
                reason="the token does not name its key ('kid'), and not exactly one key of the "
                f"identity provider fits the algorithm '{header.alg[:20]}'"
            )
        if self.on_unknown_key is not None:
            self.on_unknown_key()
        return Finding(
            reason=f"the key '{header.kid[:100]}' of the token is not a key of the identity "
            "provider",
            valid_until_s=now_s + UNKNOWN_KEY_S,
        )

    def _claims(self, token: bytes, header: _Header, key: TokenKey) -> dict[str, Any] | None:
        """Returns None if the key did not sign the token."""
        try:
            payload = self._signatures.decode(token, key.public_key, algorithms=[header.alg])
            return msgspec.json.decode(payload, type=dict[str, Any])
        except (jwt.PyJWTError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return None


def _read_header(token: bytes) -> _Header | None:
    """Returns None for a text that is not a token."""
    try:
        encoded = token.split(b".")[0]
        data = urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
        return msgspec.json.decode(data, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
