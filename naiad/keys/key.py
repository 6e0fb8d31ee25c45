"""A stored key: what the key file, `naiad key` and the HTTP key API have in common.

In:  JSON of the key file. Out: ApiKey. Field names are LiteLLM's where it has the field.
Rule: a bad value is refused with a message that names the field and what was expected; nothing is
      corrected silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from naiad.core.identity import Identity, KeyLimits
from naiad.errors import NaiadError, invalid_arg
from naiad.keys.api_class import DEFAULT_SCOPES, SCOPES
from naiad.keys.certificate import canonical_name
from naiad.keys.secret import ID_CHARS

FILE_VERSION = 1
MAX_LIMIT = 10**12
MAX_PRIORITY = 100
MAX_PATTERNS = 1000
_ID = re.compile(rf"[a-z0-9]{{{ID_CHARS}}}")
_HASH = re.compile(r"[0-9a-f]{64}")
_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d|w|mo|y)?")
_UNITS = {
    "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "mo": 30 * 86400, "y": 365 * 86400,
}  # fmt: skip
_LIMITS = ("rpm_limit", "tpm_limit", "max_parallel_requests", "tokens_per_day")


class PreviousSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret before the last rotation, valid for a grace period."""

    hash: str
    expires_at: datetime


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    name: str
    hash: str
    """SHA-256 of the secret, in hexadecimal."""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    previous: PreviousSecret | None = None
    models: tuple[str, ...] = ("*",)
    scopes: tuple[str, ...] = DEFAULT_SCOPES
    rpm_limit: int | None = None
    tpm_limit: int | None = None
    max_parallel_requests: int | None = None
    tokens_per_day: int | None = None
    priority: int = 0
    metadata: dict[str, str] = {}
    client_subjects: tuple[str, ...] = ()
    """Names of client certificates that stand for the key, in canonical format
    (naiad.keys.certificate)."""

    def identity(self) -> Identity:
        return Identity(
            self.id,
            self.name,
            scopes=frozenset(self.scopes),
            models=self.models,
            limits=KeyLimits(
                self.rpm_limit, self.tpm_limit, self.max_parallel_requests, self.tokens_per_day
            ),
            priority=self.priority,
            metadata=self.metadata,
        )

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"


class KeyDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key file."""

    version: int = FILE_VERSION
    keys: tuple[ApiKey, ...] = ()


def decode_document(data: bytes) -> KeyDocument:
    """Raises NaiadError, with the field and what was expected."""
    try:
        document = msgspec.json.decode(data, type=KeyDocument)
    except msgspec.ValidationError as error:
        raise invalid_arg(f"the key file is not valid: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the key file is not JSON: {error}") from None
    if document.version != FILE_VERSION:
        raise invalid_arg(
            f"the key file has version {document.version}, this Naiad reads version {FILE_VERSION}"
        )
    seen: set[str] = set()
    for index, key in enumerate(document.keys):
        if key.id in seen:
            raise invalid_arg(f"keys[{index}].id: two keys have the id '{key.id}'; remove one")
        seen.add(key.id)
        check_key(key, f"keys[{index}].")
    return document


def encode_document(document: KeyDocument) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def check_key(key: ApiKey, place: str = "") -> None:
    """Raises NaiadError. `place` precedes the name of the field in the message."""
    if _ID.fullmatch(key.id) is None:
        raise invalid_arg(f"{place}id: '{key.id}' must have {ID_CHARS} characters of a-z and 0-9")
    if not key.name.strip() or len(key.name) > 200 or not key.name.isprintable():
        raise invalid_arg(f"{place}name: expected 1 to 200 printable characters")
    for field, value in (("hash", key.hash), ("previous.hash", _previous_hash(key))):
        if _HASH.fullmatch(value) is None:
            raise invalid_arg(f"{place}{field}: expected the SHA-256 as 64 hexadecimal digits")
    for field in ("created_at", "expires_at", "revoked_at"):
        time = getattr(key, field)
        if time is not None and time.tzinfo is None:
            raise invalid_arg(f"{place}{field}: the time needs a zone, e.g. 2030-01-31T00:00:00Z")
    if key.previous is not None and key.previous.expires_at.tzinfo is None:
        raise invalid_arg(f"{place}previous.expires_at: the time needs a zone, e.g. Z")
    check_scopes(key.scopes, f"{place}scopes")
    check_subjects(key.client_subjects, f"{place}client_subjects")
    check_models(key.models, f"{place}models")
    for field in _LIMITS:
        check_limit(getattr(key, field), f"{place}{field}")
    if not 0 <= key.priority <= MAX_PRIORITY:
        raise invalid_arg(
            f"{place}priority: {key.priority} is out of range, expected 0 to {MAX_PRIORITY}"
        )


def _previous_hash(key: ApiKey) -> str:
    return key.hash if key.previous is None else key.previous.hash


def check_scopes(scopes: Iterable[str], field: str) -> None:
    scopes = list(scopes)
    for scope in scopes:
        if scope not in SCOPES:
            raise invalid_arg(
                f"{field}: there is no scope '{scope}', expected some of {', '.join(SCOPES)}"
            )
    if not scopes:
        raise invalid_arg(f"{field}: a key needs at least one scope of {', '.join(SCOPES)}")


def check_subjects(subjects: Iterable[str], field: str) -> None:
    for subject in subjects:
        try:
            canonical = canonical_name(subject)
        except NaiadError as error:
            raise invalid_arg(f"{field}: {error.message}") from None
        if canonical != subject:
            raise invalid_arg(f"{field}: '{subject}' must be written as '{canonical}'")


def check_models(models: Iterable[str], field: str) -> None:
    models = list(models)
    if not 0 < len(models) <= MAX_PATTERNS:
        raise invalid_arg(
            f"{field}: expected 1 to {MAX_PATTERNS} patterns; '*' stands for all models"
        )
    for pattern in models:
        if not pattern or len(pattern) > 256 or pattern != pattern.strip():
            raise invalid_arg(
                f"{field}: '{pattern[:256]}' is not a pattern of a model's name, such as 'llama*'"
            )


def check_limit(value: int | None, field: str) -> None:
    if value is not None and not 1 <= value <= MAX_LIMIT:
        raise invalid_arg(
            f"{field}: {value} is out of range, expected at least 1; leave it out for no limit"
        )


def parse_duration(text: str, field: str) -> timedelta:
    """Reads `30d`, `24h`, `15m`, `90s`, `2w`, `1mo` or `1y`; a plain number is seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise invalid_arg(
            f"{field}: '{text[:50]}' is not a duration, expected e.g. 30d, 24h, 15m or 90s"
        )
    seconds = int(match[1]) * _UNITS[match[2] or "s"]
    if not 1 <= seconds <= 100 * _UNITS["y"]:
        raise invalid_arg(
            f"{field}: '{text[:50]}' is out of range, expected more than 0 seconds and at most 100y"
        )
    return timedelta(seconds=seconds)


def utc_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def shown_key(key: ApiKey, now: datetime) -> dict[str, Any]:
    """What may be shown of a key: everything except hashes."""
    shown: dict[str, Any] = msgspec.to_builtins(key)
    shown.pop("hash")
    shown.pop("previous", None)
    defaults = {"models": list(key.models), "scopes": list(key.scopes), "priority": key.priority}
    optional = ("expires_at", "revoked_at", *_LIMITS)
    return {
        **shown,
        **defaults,
        **{field: shown.get(field) for field in optional},
        "metadata": key.metadata,
        "client_subjects": list(key.client_subjects),
        "state": key.state(now),
        "old_secret_expires_at": None
        if key.previous is None or now >= key.previous.expires_at
        else msgspec.to_builtins(key.previous.expires_at),
    }
