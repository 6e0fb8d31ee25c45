"""Changes of the key document: create, update, revoke, rotate, delete. `naiad key` and the HTTP key
API both use them.

Rule: every function is pure: a document goes in, a new one comes out, and errors name the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from naiad.errors import invalid_arg, not_found
from naiad.keys.api_class import DEFAULT_SCOPES
from naiad.keys.key import ApiKey, KeyDocument, PreviousSecret, check_key
from naiad.keys.secret import PREFIX, hash_secret, new_id, new_secret, token_text

_CLASS = re.compile(r"\[!?+\]?+[^\]]*\]")
"""A set of characters, as fnmatch reads it."""
DEFAULT_GRACE = timedelta(hours=24)
MAX_KEYS = 100_000
MAX_METADATA_BYTES = 4096
MAX_NAMES_BYTES = 16_384
"""What all patterns of a key, or all its subjects, may have together."""


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the creator of a key chooses."""

    name: str
    models: tuple[str, ...] = ("*",)
    scopes: tuple[str, ...] = DEFAULT_SCOPES
    expires_at: datetime | None = None
    rpm_limit: int | None = None
    tpm_limit: int | None = None
    max_parallel_requests: int | None = None
    tokens_per_day: int | None = None
    priority: int = 0
    metadata: dict[str, str] = {}
    client_subjects: tuple[str, ...] = ()


class Issued(msgspec.Struct, frozen=True):
    """A key with a new secret. `token` is the only place where the secret ever is."""

    document: KeyDocument
    key: ApiKey
    token: str

    def __repr__(self) -> str:
        return f"Issued({self.key.id})"


def create(document: KeyDocument, wanted: NewKey, now: datetime) -> Issued:
    if len(document.keys) >= MAX_KEYS:
        raise invalid_arg(f"there are {MAX_KEYS} keys already; delete some that are not used")
    ids = {key.id for key in document.keys}
    key_id = new_id()
    while key_id in ids:
        key_id = new_id()
    secret = new_secret()
    key = ApiKey(
        id=key_id,
        hash=hash_secret(secret).hex(),
        created_at=now,
        **msgspec.structs.asdict(wanted),
    )
    check_key(key)
    _check_new(key, NewKey.__struct_fields__)
    _check_active_name(document, key)
    _check_subjects(document, key)
    return Issued(
        msgspec.structs.replace(document, keys=(*document.keys, key)),
        key,
        token_text(key_id, secret),
    )


def update(document: KeyDocument, key: ApiKey, fields: dict[str, Any]) -> KeyDocument:
    changed = msgspec.structs.replace(key, **fields)
    check_key(changed)
    _check_new(changed, fields)
    _check_subjects(document, changed)
    return _replace(document, changed)


def revoke(document: KeyDocument, key: ApiKey, now: datetime) -> KeyDocument:
    """Revoking a key twice keeps the first time."""
    changed = msgspec.structs.replace(key, revoked_at=key.revoked_at or now, previous=None)
    return _replace(document, changed)


def rotate(document: KeyDocument, key: ApiKey, now: datetime, grace: timedelta) -> Issued:
    """Gives the key a new secret. The old one stays valid for the grace period."""
    if key.state(now) != "active":
        raise invalid_arg(f"the key '{key.id}' is {key.state(now)}; create a new key instead")
    secret = new_secret()
    changed = msgspec.structs.replace(
        key,
        hash=hash_secret(secret).hex(),
        previous=PreviousSecret(key.hash, now + grace) if grace else None,
    )
    return Issued(_replace(document, changed), changed, token_text(key.id, secret))


def delete(document: KeyDocument, key: ApiKey) -> KeyDocument:
    return msgspec.structs.replace(
        document, keys=tuple(other for other in document.keys if other.id != key.id)
    )


def find(document: KeyDocument, text: str) -> ApiKey:
    """The key with this id, or this whole text, or, if no other active key has it, this name."""
    key_id = text[len(PREFIX) :][:8] if text.startswith(PREFIX) else text
    for key in document.keys:
        if key.id == key_id:
            return key
    named = [key for key in document.keys if key.name == text]
    active = [key for key in named if key.revoked_at is None] or named
    if len(active) == 1:
        return active[0]
    if active:
        ids = ", ".join(key.id for key in active)
        raise invalid_arg(f"several keys have the name '{text}': {ids}; use the id")
    raise not_found(f"there is no key '{key_id}'; `naiad key list` shows all keys")


def _check_new(key: ApiKey, fields: Iterable[str]) -> None:
    """What only new values must keep: a key file may have older ones, and must stay readable."""
    limits = {"metadata": MAX_METADATA_BYTES, "models": MAX_NAMES_BYTES}
    limits["client_subjects"] = MAX_NAMES_BYTES
    for field in limits.keys() & set(fields):
        num_bytes = len(msgspec.json.encode(getattr(key, field)))
        if num_bytes > limits[field]:
            raise invalid_arg(
                f"{field}: {num_bytes} bytes as JSON, expected at most {limits[field]}"
            )
    for pattern in key.models if "models" in fields else ():
        if "[" in _CLASS.sub("", pattern):
            raise invalid_arg(
                f"models: '{pattern}' has a '[' without its ']'; write '[[]' for the character"
            )


def _check_active_name(document: KeyDocument, key: ApiKey) -> None:
    for other in document.keys:
        if other.name == key.name and other.state(key.created_at) == "active":
            raise invalid_arg(
                f"name: the key '{other.id}' has the name '{key.name}' already; choose another, or "
                f"run `naiad key rotate {other.id}` for a new secret"
            )


def _check_subjects(document: KeyDocument, key: ApiKey) -> None:
    """A certificate stands for one key."""
    for other in document.keys:
        shared = set(other.client_subjects) & set(key.client_subjects)
        if shared and other.id != key.id and other.revoked_at is None:
            raise invalid_arg(
                f"client_subjects: the key '{other.id}' has the subject '{min(shared)}' already; "
                f"revoke it, or use another subject"
            )


def _replace(document: KeyDocument, changed: ApiKey) -> KeyDocument:
    return msgspec.structs.replace(
        document, keys=tuple(changed if key.id == changed.id else key for key in document.keys)
    )
