"""The claims of a token whose signature is valid: whether it is for this server and now, and what
it allows.

In:  the claims, decoded from JSON, and TokenRules, made from the options. Out: Identity, or
     ClaimError, whose message the client gets.
Rule: pure functions. A claim with a bad value refuses the token: a limit that cannot be read must
      not become no limit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.core.identity import Identity, KeyLimits
from naiad.errors import NaiadError
from naiad.keys.api_class import SCOPES
from naiad.keys.key import MAX_PRIORITY, check_limit, check_models

MAX_SUBJECT_CHARS = 255
MAX_METADATA = 50
SEPARATOR = "|"
_ABSENT = object()


class ClaimNames(msgspec.Struct, frozen=True):
    """The claim that holds each field. Several names are tried in order. A name that the token does
    not have as a whole is a path: `realm_access.roles`."""

    subject: tuple[str, ...] = ("sub",)
    scopes: tuple[str, ...] = ("scope", "scp")
    models: tuple[str, ...] = ("naiad_models",)
    rpm: tuple[str, ...] = ("naiad_rpm",)
    tpm: tuple[str, ...] = ("naiad_tpm",)
    max_parallel: tuple[str, ...] = ("naiad_max_parallel",)
    tokens_per_day: tuple[str, ...] = ("naiad_tokens_per_day",)
    priority: tuple[str, ...] = ("naiad_priority",)
    metadata: tuple[str, ...] = ("naiad_metadata",)


class TokenRules(msgspec.Struct, frozen=True):
    issuer: str
    audiences: tuple[str, ...]
    leeway_s: float = 60.0
    names: ClaimNames = ClaimNames()
    scope_prefix: str = "naiad:"
    """What a scope of a token begins with if it is meant for Naiad."""
    default_scopes: tuple[str, ...] = ()
    """The scopes of a token that has none of Naiad's."""


class ClaimError(Exception):
    def __init__(self, message: str, *, again_s: float | None = None) -> None:
        """`again_s` is the time at which the same token may be valid."""
        super().__init__(message)
        self.message = message
        self.again_s = again_s


def subject_id(claims: dict[str, Any], rules: TokenRules) -> str:
    """Returns the id under which limits, metrics and the audit log know the client."""
    subject = _find(claims, rules.names.subject)
    name = rules.names.subject[0]
    if not isinstance(subject, str) or not subject:
        raise ClaimError(f"the token has no claim '{name}', which names the client")
    if len(subject) > MAX_SUBJECT_CHARS or not subject.isprintable():
        raise ClaimError(
            f"the claim '{name}' of the token must have at most {MAX_SUBJECT_CHARS} printable "
            "characters"
        )
    return f"{rules.issuer}{SEPARATOR}{subject}"


def check_claims(claims: dict[str, Any], rules: TokenRules, now_s: float) -> float:
    """Returns the time at which the token ends, leeway included. `exp`, `iat`, `iss` and `aud` are
    required; `nbf` counts if the token has it, because many identity providers leave it out."""
    if claims.get("iss") != rules.issuer:
        raise ClaimError(
            f"the token was issued by {_shown(claims.get('iss'))}, expected '{rules.issuer}'"
        )
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not any(each in rules.audiences for each in audiences if isinstance(each, str)):
        raise ClaimError(
            f"the token is for the audience {_shown(audience)}, expected "
            + " or ".join(f"'{each}'" for each in rules.audiences)
        )
    end_s = _time(claims, "exp") + rules.leeway_s
    if now_s >= end_s:
        raise ClaimError("the token has expired")
    start_s = max(_time(claims, "iat"), _time(claims, "nbf") if "nbf" in claims else 0.0)
    if now_s < start_s - rules.leeway_s:
        raise ClaimError("the token is not valid yet", again_s=start_s - rules.leeway_s)
    return end_s


def read_identity(claims: dict[str, Any], rules: TokenRules) -> Identity:
    names = rules.names
    key_id = subject_id(claims, rules)
    try:
        has_models = _find(claims, names.models) is not None
        models = tuple(_words(claims, names.models)) if has_models else ("*",)
        check_models(models, _place(names.models))
        priority = _number(claims, names.priority) or 0
    except NaiadError as error:
        raise ClaimError(f"the token is refused: {error.message}") from None
    if not 0 <= priority <= MAX_PRIORITY:
        raise ClaimError(
            f"the token is refused: {_place(names.priority)}: {priority} is out of range, expected "
            f"0 to {MAX_PRIORITY}"
        )
    limits = KeyLimits(
        *(
            _limit(claims, field)
            for field in (names.rpm, names.tpm, names.max_parallel, names.tokens_per_day)
        )
    )
    return Identity(
        key_id,
        key_id.removeprefix(f"{rules.issuer}{SEPARATOR}"),
        scopes=_scopes(claims, rules),
        models=models,
        limits=limits,
        priority=priority,
        metadata=_metadata(claims, names.metadata),
    )


def _scopes(claims: dict[str, Any], rules: TokenRules) -> frozenset[str]:
    """Scopes of other applications are not ours. A scope with our prefix that does not exist gives
    nothing: the provider may know more scopes than this version of Naiad."""
    words = _words(claims, rules.names.scopes)
    ours = [
        word[len(rules.scope_prefix) :] for word in words if word.startswith(rules.scope_prefix)
    ]
    if not ours:
        return frozenset(rules.default_scopes)
    return frozenset(scope for scope in ours if scope in SCOPES)


def _find(claims: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Returns None if the token has no such claim. Raises ClaimError for one that is null:
    providers send that for an attribute that nobody has set, and no limit must come of it."""
    for name in names:
        value: Any = claims
        for part in [name] if name in claims else name.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT
        if value is None:
            raise ClaimError(f"the token is refused: {_place((name,))} is null")
        if value is not _ABSENT:
            return value
    return None


def _words(claims: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """Reads a list of texts, or one text with spaces or commas between them."""
    value = _find(claims, names)
    if value is None:
        return []
    if isinstance(value, str):
        return value.replace(",", " ").split()
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    raise ClaimError(f"the token is refused: {_place(names)} must be a text or a list of texts")


def _number(claims: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """Some identity providers can only send texts."""
    value = _find(claims, names)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ClaimError(f"the token is refused: {_place(names)} must be an integer")
    return value


def _limit(claims: dict[str, Any], names: tuple[str, ...]) -> int | None:
    value = _number(claims, names)
    try:
        check_limit(value, _place(names))
    except NaiadError as error:
        raise ClaimError(f"the token is refused: {error.message}") from None
    return value


def _metadata(claims: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    value = _find(claims, names)
    if value is None:
        return {}
    if (
        not isinstance(value, dict)
        or len(value) > MAX_METADATA
        or not all(isinstance(text, str) for text in value.values())
    ):
        raise ClaimError(
            f"the token is refused: {_place(names)} must be an object with at most {MAX_METADATA} "
            "texts"
        )
    return value


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise ClaimError(f"the token needs the claim '{name}', a time in seconds since 1970")
    return float(value)


def _place(names: tuple[str, ...]) -> str:
    return f"the claim '{names[0]}'"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(each) for each in value[:5])
    return f"'{value[:200]}'" if isinstance(value, str) else "nobody"
