"""The public keys of an identity provider: a JSON Web Key Set (RFC 7517).

In:  the bytes of the document. Out: KeySet, which chooses the keys for the header of a token.
Rule: only the key says which algorithms may verify with it. A symmetric key is never used, so that
      a token cannot be signed with a public key as if it were a secret (HS256), and "none" is not
      an algorithm here.
"""

from __future__ import annotations

from typing import Any

import jwt
import msgspec
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from naiad.errors import invalid_arg

MAX_KEYS = 100
MIN_RSA_BITS = 2048
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
"""Keyed by type and curve."""


class TokenKey(msgspec.Struct, frozen=True):
    kid: str
    """Empty if the key has no id."""
    algorithms: tuple[str, ...]
    public_key: Any


class KeySet(msgspec.Struct, frozen=True):
    keys: tuple[TokenKey, ...] = ()

    def choose(self, kid: str, algorithm: str) -> list[TokenKey]:
        """Returns the keys that may have signed a token. A token without a `kid` is accepted only
        if one key alone fits."""
        fitting = [
            key for key in self.keys if algorithm in key.algorithms and (not kid or key.kid == kid)
        ]
        return fitting if kid or len(fitting) == 1 else []

    def has(self, kid: str) -> bool:
        return any(key.kid == kid for key in self.keys)


class _Jwk(msgspec.Struct):
    """The fields of a key that decide how it may be used."""

    kty: str
    kid: str = ""
    alg: str = ""
    use: str = ""
    key_ops: tuple[str, ...] = ()
    crv: str = ""
    d: str = ""
    """Present only in a private key."""

    @property
    def is_for_signatures(self) -> bool:
        return self.use in ("", "sig") and (not self.key_ops or "verify" in self.key_ops)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Empty for a key that cannot verify a token."""
        possible = _ALGORITHMS.get((self.kty, "" if self.kty == "RSA" else self.crv), ())
        if not self.alg:
            return possible
        return (self.alg,) if self.alg in possible else ()


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


def decode_key_set(data: bytes) -> KeySet:
    """Skips keys for other purposes, as RFC 7517 demands. Raises NaiadError if no key is left, or
    if a key is broken."""
    try:
        document = msgspec.json.decode(data, type=_Document)
        keys = [msgspec.convert(key, _Jwk) for key in document.keys]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_arg(f"it is not a JSON Web Key Set: {error}") from None
    if len(keys) > MAX_KEYS:
        raise invalid_arg(f"it has {len(keys)} keys, expected at most {MAX_KEYS}")
    chosen = [
        TokenKey(key.kid, key.algorithms, _public_key(key, fields, f"keys[{index}]"))
        for index, (key, fields) in enumerate(zip(keys, document.keys, strict=True))
        if key.is_for_signatures and key.algorithms
    ]
    if not chosen:
        raise invalid_arg(
            "it has no key that can verify a token, expected a public RSA, EC or Ed25519 key"
        )
    return KeySet(tuple(chosen))


def _public_key(key: _Jwk, fields: dict[str, Any], place: str) -> Any:
    if key.d:
        raise invalid_arg(f"{place} is a private key; publish the public key only")
    kind = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}[key.kty]
    try:
        public_key = kind.from_jwk(fields)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise invalid_arg(f"{place} is not a valid {key.kty} key: {error}") from None
    if key.kty == "RSA" and public_key.key_size < MIN_RSA_BITS:
        raise invalid_arg(
            f"{place} has {public_key.key_size} bits, expected at least {MIN_RSA_BITS}"
        )
    return public_key
