"""Signed tokens: who is let in, with keys that the tests make and a clock that they advance."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import msgspec
import pytest

from naiad.errors import Code, NaiadError
from naiad.keys.account import Admission
from naiad.keys.api_class import INFERENCE, KEYS
from naiad.keys.guard import Gate, Guard, read_text
from naiad.keys.token import verifier as verifier_module
from naiad.keys.token.claims import ClaimNames, TokenRules
from naiad.keys.token.verifier import TokenVerifier
from tests.fakes.keys import KeyRing
from tests.fakes.tokens import AUDIENCE, ISSUER, IdentityProvider, new_private_key, public_jwk

ALICE = f"{ISSUER}|alice"


class Rig:
    def __init__(self, **rules: Any) -> None:
        self.ring = KeyRing()
        self.provider = IdentityProvider(self.ring.time())
        self.verifier = TokenVerifier(
            TokenRules(ISSUER, (AUDIENCE, "other"), **rules), clock_s=self.ring.time
        )
        self.verifier.on_change = self.ring.table.change
        self.ring.table.find_token = self.verifier.find
        self.verifier.replace(self.provider.key_set())
        self.guard: Guard = self.ring.guard()

    def gate(self, token: str, api: str = INFERENCE, model: str = "") -> Gate:
        headers = {"authorization": f"Bearer {token}"}
        gate = self.guard.gate(api, read_text(headers), model)
        assert isinstance(gate, Gate)
        return gate

    def enter(self, token: str, **request: Any) -> Admission:
        entered = self.gate(token, **request).enter()
        assert isinstance(entered, Admission), entered
        return entered

    def refusal(self, token: str, **request: Any) -> str:
        entered = self.gate(token, **request).enter()
        assert isinstance(entered, NaiadError)
        assert entered.code is Code.UNAUTHENTICATED
        assert token not in entered.message
        return entered.message


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    "algorithm", ["RS256", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]
)
def test_a_token_of_each_algorithm(rig: Rig, algorithm: str) -> None:
    rig.provider.add_key("second", algorithm)
    rig.verifier.replace(rig.provider.key_set())
    assert rig.enter(rig.provider.token("second")).identity.key_id == ALICE


def test_claims_give_scopes_models_and_limits(rig: Rig) -> None:
    token = rig.provider.token(
        naiad_models=["llama*", "digits"],
        naiad_rpm=60,
        naiad_tpm="10000",
        naiad_max_parallel=4,
        naiad_tokens_per_day=1_000_000,
        naiad_priority=3,
        naiad_metadata={"team": "blue"},
    )
    identity = rig.enter(token).identity
    assert identity.name == "alice"
    assert identity.scopes == {"inference", "metadata"}
    assert [identity.may_see(name) for name in ("llama-3", "digits", "other")] == [1, 1, 0]
    limits = identity.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (60, 10000)
    assert (limits.max_parallel, limits.tokens_per_day) == (4, 1_000_000)
    assert identity.priority == 3
    assert identity.metadata == {"team": "blue"}


def test_limits_hold_for_the_subject_over_all_its_tokens(rig: Rig) -> None:
    for number in range(2):
        assert rig.enter(rig.provider.token(naiad_rpm=2, jti=str(number)))
    refused = rig.gate(rig.provider.token(naiad_rpm=2, jti="2")).enter()
    assert isinstance(refused, NaiadError)
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert f"the API key '{ALICE}' has reached its limit of 2 requests" in refused.message
    assert rig.enter(rig.provider.token(naiad_rpm=2, sub="bob"))


def test_a_scope_and_a_model_are_required(rig: Rig) -> None:
    token = rig.provider.token(naiad_models="digits")
    for request, code in (
        ({"api": KEYS}, Code.PERMISSION_DENIED),
        ({"model": "llama"}, Code.NOT_FOUND),
    ):
        entered = rig.gate(token, **request).enter()
        assert isinstance(entered, NaiadError)
        assert entered.code is code


@pytest.mark.parametrize(
    ("rules", "claims", "scopes"),
    [
        ({}, {"scope": None, "scp": ["naiad:trace"]}, {"trace"}),
        ({}, {"scope": None}, set()),
        ({}, {"scope": "inference"}, set()),
        ({}, {"scope": "naiad:fly naiad:inference"}, {"inference"}),
        ({"scope_prefix": ""}, {"scope": "inference keys email"}, {"inference", "keys"}),
        ({"default_scopes": ("inference",)}, {"scope": "openid"}, {"inference"}),
        ({"default_scopes": ("inference",)}, {"scope": "naiad:fly"}, set()),
        (
            {"names": ClaimNames(scopes=("realm_access.roles",))},
            {"realm_access": {"roles": ["naiad:logging"]}},
            {"logging"},
        ),
    ],
)
def test_where_scopes_stand(
    rules: dict[str, Any], claims: dict[str, Any], scopes: set[str]
) -> None:
    rig = Rig(**rules)
    assert rig.enter(rig.provider.token(**claims), api="unclassified").identity.scopes == scopes


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"exp": 1}, "the token has expired"),
        ({"aud": "shop"}, "the token is for the audience 'shop', expected 'naiad' or 'other'"),
        ({"aud": ["shop", "pub"]}, "the token is for the audience 'shop', 'pub', expected"),
        ({"aud": None}, "the token is for the audience nobody"),
        ({"iss": "https://evil"}, f"issued by 'https://evil', expected '{ISSUER}'"),
        ({"iss": None}, "the token was issued by nobody"),
        ({"sub": None}, "the token has no claim 'sub'"),
        ({"sub": "x" * 256}, "at most 255 printable characters"),
        ({"sub": "a\nb"}, "at most 255 printable characters"),
        ({"exp": None}, "the token needs the claim 'exp'"),
        ({"iat": None}, "the token needs the claim 'iat'"),
        ({"exp": True}, "the token needs the claim 'exp'"),
        ({"nbf": "soon"}, "the token needs the claim 'nbf'"),
        ({"naiad_rpm": 0}, "the claim 'naiad_rpm': 0 is out of range"),
        ({"naiad_rpm": "many"}, "the claim 'naiad_rpm' must be an integer"),
        ({"naiad_tpm": 1.5}, "the claim 'naiad_tpm' must be an integer"),
        ({"naiad_models": []}, "the claim 'naiad_models': expected 1 to"),
        ({"naiad_models": 7}, "the claim 'naiad_models' must be a text or a list of texts"),
        ({"naiad_priority": 101}, "the claim 'naiad_priority': 101 is out of range"),
        ({"naiad_metadata": {"a": 1}}, "the claim 'naiad_metadata' must be an object"),
    ],
)
def test_claims_that_refuse_a_token(rig: Rig, claims: dict[str, Any], message: str) -> None:
    assert message in rig.refusal(rig.provider.token(**claims))


@pytest.mark.parametrize("claim", [name for (name, *_) in msgspec.structs.astuple(ClaimNames())])
def test_a_claim_that_is_null_refuses_the_token(rig: Rig, claim: str) -> None:
    """Providers send null for an attribute that nobody has set."""
    token = rig.provider.sign({**rig.provider.claims(), claim: None})
    assert rig.refusal(token) == f"the token is refused: the claim '{claim}' is null"


def test_a_null_on_the_path_to_a_claim_refuses_the_token() -> None:
    rig = Rig(names=ClaimNames(rpm=("naiad.rpm",)))
    token = rig.provider.sign({**rig.provider.claims(), "naiad": {"rpm": None}})
    assert rig.refusal(token) == "the token is refused: the claim 'naiad.rpm' is null"
    assert rig.enter(rig.provider.sign({**rig.provider.claims(), "naiad": None}))


def test_the_clocks_may_differ_by_the_leeway(rig: Rig) -> None:
    now_s = int(rig.ring.time())
    assert rig.enter(rig.provider.token(exp=now_s - 59))
    assert rig.refusal(rig.provider.token(exp=now_s - 60)) == "the token has expired"
    assert rig.enter(rig.provider.token(iat=now_s + 60))
    for name in ("iat", "nbf"):
        claims: dict[str, Any] = {name: now_s + 61, "exp": now_s + 900, "jti": name}
        early = rig.gate(rig.provider.token(**claims))
        assert isinstance(early.enter(), NaiadError)
        rig.ring.time.advance(seconds=1)
        assert isinstance(early.enter(), Admission)
        rig.ring.time.advance(seconds=-1)


def test_a_token_fails_its_next_request_when_it_expires(rig: Rig) -> None:
    kept = rig.gate(rig.provider.token())
    assert isinstance(kept.enter(), Admission)
    assert kept.enter_fast() is not None
    rig.ring.time.advance(seconds=660)
    assert kept.enter_fast() is None
    refused = kept.enter()
    assert isinstance(refused, NaiadError)
    assert refused.message == "the token has expired"


def test_a_token_fails_its_next_request_when_its_key_is_gone(rig: Rig) -> None:
    kept = rig.gate(rig.provider.token())
    assert isinstance(kept.enter(), Admission)
    del rig.provider.private_keys["first"]
    rig.provider.add_key("second", "ES256")
    rig.verifier.replace(rig.provider.key_set())
    assert kept.enter_fast() is None
    refused = kept.enter()
    assert isinstance(refused, NaiadError)
    assert refused.message == "the key 'first' of the token is not a key of the identity provider"


def test_an_unknown_key_asks_for_the_key_set_again(rig: Rig) -> None:
    asked: list[None] = []
    rig.verifier.on_unknown_key = lambda: asked.append(None)
    rig.provider.add_key("second", "ES256")
    waiting = rig.gate(rig.provider.token("second"))
    assert isinstance(waiting.enter(), NaiadError)
    assert isinstance(waiting.enter(), NaiadError)
    assert len(asked) == 1
    rig.ring.time.advance(seconds=1)
    assert isinstance(waiting.enter(), NaiadError)
    assert len(asked) == 2
    rig.verifier.replace(rig.provider.key_set())
    assert isinstance(waiting.enter(), Admission)


def encode(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_forged_tokens(rig: Rig) -> None:
    token = rig.provider.token()
    head, claims, signature = token.split(".")
    stranger = new_private_key("ES256")
    other = jwt.encode(rig.provider.claims(), stranger, "ES256", headers={"kid": "first"})
    invalid = "the signature of the token is not valid"
    assert rig.refusal(other) == invalid
    assert rig.refusal(f"{head}.{encode(rig.provider.claims(sub='root'))}.{signature}") == invalid
    assert rig.refusal(f"{head}.{claims}.") == invalid
    for algorithm in ("none", "None", "HS256", "ES384", "RS256"):
        forged = f"{encode({'alg': algorithm, 'kid': 'first'})}.{claims}."
        assert "may not be used with the algorithm" in rig.refusal(forged)
    assert "does not name its key" in rig.refusal(f"{encode({'alg': 'none'})}.{claims}.")
    critical = encode({"alg": "ES256", "kid": "first", "crit": ["b64"]})
    assert "'crit'" in rig.refusal(f"{critical}.{claims}.{signature}")
    deep = encode(b'{"a":' + b"[" * 3000)
    for broken in ("eyJ..", "eyJ.a.b", f"{deep}.{claims}.x"):
        assert rig.refusal(broken) == "the token is not a valid JSON Web Token"


def test_a_token_signed_with_the_public_key_as_a_secret(rig: Rig) -> None:
    """The classic confusion: HS256 with the text of the public key."""
    rig.provider.add_key("rsa", "RS256")
    rig.verifier.replace(rig.provider.key_set())
    public = json.dumps(public_jwk(rig.provider.private_keys["rsa"][1], "RS256")).encode()
    signed = f"{encode({'alg': 'HS256', 'kid': 'rsa'})}.{encode(rig.provider.claims())}"
    token = f"{signed}.{encode(hmac.digest(public, signed.encode(), 'sha256'))}"
    assert "may not be used with the algorithm 'HS256'" in rig.refusal(token)


def test_claims_nested_too_deep_are_refused(rig: Rig) -> None:
    payload = b'{"a":' + b"[" * 2500
    _, key = rig.provider.private_keys["first"]
    token = jwt.api_jws.encode(payload, key, "ES256", headers={"kid": "first"})
    assert len(token) < 8192
    assert rig.refusal(token) == "the signature of the token is not valid"


def test_a_token_without_a_kid_needs_a_single_key_that_fits(rig: Rig) -> None:
    algorithm, key = rig.provider.private_keys["first"]
    token = jwt.encode(rig.provider.claims(), key, algorithm)
    assert rig.enter(token)
    rig.provider.add_key("rsa", "RS256")
    rig.verifier.replace(rig.provider.key_set())
    assert rig.enter(token)
    rig.provider.add_key("second", "ES256")
    rig.verifier.replace(rig.provider.key_set())
    assert "does not name its key" in rig.refusal(token)


def test_a_verified_token_is_not_verified_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    token = rig.provider.token()
    rig.enter(token)
    with monkeypatch.context() as patch:
        patch.setattr(rig.verifier, "_signatures", None)
        assert rig.enter(token)


def test_the_number_of_kept_tokens_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "MAX_CACHED_TOKENS", 3)
    for number in range(5):
        rig.enter(rig.provider.token(sub=f"user-{number}"))
    assert len(rig.verifier._verified) == 3


def test_stored_keys_and_tokens_work_next_to_each_other(rig: Rig) -> None:
    key = rig.ring.create("stored")
    headers = {"authorization": f"Bearer {rig.provider.token()}", "x-api-key": key}
    gate = rig.guard.gate(INFERENCE, read_text(headers))
    assert gate is not None
    entered = gate.enter()
    assert isinstance(entered, Admission)
    assert entered.identity.name == "stored"
    proxied = {"authorization": "Bearer opaque", "x-api-key": rig.provider.token()}
    gate = rig.guard.gate(INFERENCE, read_text(proxied))
    assert gate is not None
    entered = gate.enter()
    assert isinstance(entered, Admission)
    assert entered.identity.key_id == ALICE


def test_no_repr_contains_a_token(rig: Rig) -> None:
    token = rig.provider.token()
    credential = rig.guard._credential(read_text({"x-api-key": token}))
    assert token not in repr(credential) + repr(rig.gate(token))
