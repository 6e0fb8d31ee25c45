"""An identity provider for tests: it signs tokens and publishes its keys."""

from __future__ import annotations

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://login.example.com"
AUDIENCE = "naiad"
_KINDS: dict[str, Any] = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "ES": ECAlgorithm}


def new_private_key(algorithm: str, rsa_bits: int = 2048) -> Any:
    if algorithm[:2] in ("RS", "PS"):
        return rsa.generate_private_key(65537, rsa_bits)
    if algorithm.startswith("ES"):
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        return ec.generate_private_key(curves[algorithm])
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, algorithm: str, **fields: str) -> dict[str, Any]:
    kind = _KINDS.get(algorithm[:2], OKPAlgorithm)
    return {**json.loads(kind.to_jwk(key.public_key())), **fields}


class IdentityProvider:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.private_keys: dict[str, tuple[str, Any]] = {}
        self.add_key("first", "ES256")

    def add_key(self, kid: str, algorithm: str) -> None:
        self.private_keys[kid] = (algorithm, new_private_key(algorithm))

    def key_set(self) -> bytes:
        keys = [
            public_jwk(key, algorithm, kid=kid, alg=algorithm, use="sig")
            for kid, (algorithm, key) in self.private_keys.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def claims(self, **claims: Any) -> dict[str, Any]:
        """A claim of None is left out."""
        every = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": int(self.now_s),
            "exp": int(self.now_s) + 600,
            "scope": "openid naiad:inference naiad:metadata",
            **claims,
        }
        return {name: value for name, value in every.items() if value is not None}

    def token(self, kid: str = "first", **claims: Any) -> str:
        return self.sign(self.claims(**claims), kid)

    def sign(self, claims: dict[str, Any], kid: str = "first") -> str:
        algorithm, key = self.private_keys[kid]
        return str(jwt.encode(claims, key, algorithm, headers={"kid": kid}))
