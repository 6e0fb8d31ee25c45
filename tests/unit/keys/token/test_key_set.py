"""JSON Web Key Sets: which keys are used, and which documents are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jwt.algorithms import ECAlgorithm

from naiad.errors import NaiadError
from naiad.keys.token.key_set import decode_key_set
from tests.fakes.tokens import new_private_key, public_jwk

EC_KEY = new_private_key("ES256")
GOOD = public_jwk(EC_KEY, "ES256", kid="good")


def encode(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_keys_for_other_purposes_are_skipped() -> None:
    key_set = decode_key_set(
        encode(
            GOOD,
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
            {"kty": "future", "kid": "unknown"},
            {**GOOD, "kid": "encryption", "use": "enc"},
            {**GOOD, "kid": "signer", "key_ops": ["sign"]},
            {**GOOD, "kid": "wrong", "alg": "HS256"},
        )
    )
    assert [key.kid for key in key_set.keys] == ["good"]


def test_a_key_without_alg_verifies_with_the_algorithms_of_its_type() -> None:
    rsa = public_jwk(new_private_key("RS256"), "RS256", kid="rsa")
    key_set = decode_key_set(encode(GOOD, rsa))
    assert key_set.choose("good", "ES256")
    assert key_set.choose("rsa", "PS512")
    assert key_set.choose("rsa", "ES256") == key_set.choose("good", "RS256") == []
    assert key_set.choose("rsa", "HS256") == key_set.choose("rsa", "none") == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>", "it is not a JSON Web Key Set"),
        (b"[]", "it is not a JSON Web Key Set"),
        (b"{}", "it is not a JSON Web Key Set"),
        (b'{"keys": [' + b"[" * 5000, "it is not a JSON Web Key Set"),
        (encode(), "it has no key that can verify a token"),
        (encode({"kty": "oct", "k": "c2VjcmV0"}), "it has no key that can verify a token"),
        (encode({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}), "keys[0] is not a valid EC"),
        (encode({"kty": "RSA", "n": "AQ"}), "keys[0] is not a valid RSA key"),
        (encode(json.loads(ECAlgorithm.to_jwk(EC_KEY))), "keys[0] is a private key"),
        (encode(*[GOOD] * 101), "it has 101 keys, expected at most 100"),
        (
            encode(GOOD, public_jwk(new_private_key("RS256", rsa_bits=1024), "RS256")),
            "keys[1] has 1024 bits, expected at least 2048",
        ),
    ],
)
def test_documents_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(NaiadError) as caught:
        decode_key_set(data)
    assert message in caught.value.message
