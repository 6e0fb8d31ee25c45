"""The text of a key: `sk-naiad-<id>-<secret>`.

The id is public. The secret has 256 random bits, is shown once, and only its SHA-256 is stored: a
fast hash is right for a secret that nobody can guess.
Rule: secrets are compared in constant time, and no error, log line or `repr` contains one.
"""

from __future__ import annotations

import hashlib
import secrets
import string

import msgspec

from naiad.keys.certificate import CertificateNames

PREFIX = "sk-naiad-"
PAGE_HEADER = "x-naiad-console"
"""What a page of the console proves itself with, beside its cookie."""
ID_CHARS = 8
_ALPHABET = string.ascii_lowercase + string.digits
_SECRET_BYTES = 32
_ID_END = len(PREFIX) + ID_CHARS
_JSON = b"eyJ"
"""`{"` in base64, with which every signed token begins."""
MAX_TOKEN_BYTES = 8192
"""Signed tokens of identity providers are the longest that are sent."""


class Credential(msgspec.Struct, frozen=True):
    """What a client has presented. It holds no secret of a key."""

    key_id: str
    """Empty for a text that is not a key of ours."""
    secret_hash: bytes
    """The hash of what follows the id."""
    token_hash: bytes
    """The hash of the whole text, for keys of `--api-key`, which may be any text."""
    session_hash: bytes = b""
    """The hash of a session's token (naiad.keys.session). Most other fields are empty then."""
    page_hash: bytes = b""
    """The hash of the page's own secret, where a request with a session needs it."""
    signed_token: bytes = b""
    """The whole text if it looks like a signed token (naiad.keys.token), which is verified again
    when the keys of its issuer change. Empty otherwise."""
    certificate: CertificateNames | None = None
    """The client's certificate, where a request has no key. The other fields are empty then."""

    def __repr__(self) -> str:
        return f"Credential({self.key_id!r}, ...)"


def new_id() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARS))


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def token_text(key_id: str, secret: str) -> str:
    return f"{PREFIX}{key_id}-{secret}"


def hash_secret(secret: str | bytes) -> bytes:
    data = secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
    return hashlib.sha256(data).digest()


def read_credential(token: bytes) -> Credential:
    """Accepts any bytes: what is not a key of ours matches none."""
    text = token.decode("latin-1")
    is_ours = text.startswith(PREFIX) and text[_ID_END : _ID_END + 1] == "-"
    return Credential(
        text[len(PREFIX) : _ID_END] if is_ours else "",
        hash_secret(token[_ID_END + 1 :]) if is_ours else b"",
        hash_secret(token),
        signed_token=token if token.startswith(_JSON) and token.count(b".") == 2 else b"",
    )
