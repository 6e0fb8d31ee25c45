"""The guard: who may enter, with a clock that the tests advance."""

from __future__ import annotations

import pytest

from naiad.errors import Code, NaiadError
from naiad.keys.account import Admission
from naiad.keys.api_class import (
    HEALTH,
    INFERENCE,
    KEYS,
    METRICS,
    MODEL_READINESS,
    PAGE,
    UNCLASSIFIED,
)
from naiad.keys.guard import CertificateGate, Gate, Guard, read_bytes, read_text
from naiad.keys.key_table import MISSING
from tests.fakes.keys import KeyRing


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing()


def gate(
    guard: Guard, key: str | None, api: str = INFERENCE, model: str = ""
) -> Gate | CertificateGate:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    made = guard.gate(api, read_text(headers), model)
    assert made is not None
    return made


def refusal(gate: Gate | CertificateGate) -> tuple[Code, str]:
    entered = gate.enter()
    assert isinstance(entered, NaiadError)
    return entered.code, entered.message


def outcome(gate: Gate | CertificateGate) -> tuple[Code, str] | str:
    """The name of the key that is let in, or the error."""
    entered = gate.enter()
    if isinstance(entered, NaiadError):
        return entered.code, entered.message
    return entered.identity.name


def test_a_key_is_required(ring: KeyRing) -> None:
    guard = ring.guard()
    assert outcome(gate(guard, None)) == (Code.UNAUTHENTICATED, MISSING)
    assert guard.accounts.refusals == {Code.UNAUTHENTICATED: 1}


def test_health_and_pages_are_open_and_name_no_model(ring: KeyRing) -> None:
    guard = ring.guard()
    assert [guard.gate(api, read_text({})) for api in (HEALTH, PAGE)] == [None] * 2
    for api in (METRICS, MODEL_READINESS):
        assert guard.gate(api, read_text({})) is not None
    assert not guard.guards_metrics_port
    closed = ring.guard(guarded_apis=frozenset((HEALTH, METRICS)))
    assert closed.guards_metrics_port
    assert closed.gate(HEALTH, read_text({})) is not None
    assert closed.gate(PAGE, read_text({})) is None


def test_an_api_without_a_class_is_a_mistake(ring: KeyRing) -> None:
    with pytest.raises(ValueError, match="API class"):
        ring.guard().gate("", read_text({}))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer KEY"},
        {"authorization": "bearer  KEY "},
        {"x-api-key": "KEY"},
        {"x-goog-api-key": "KEY"},
        {"authorization": "Basic dTpw", "x-api-key": "KEY"},
        {"authorization": "Bearer of-a-proxy", "x-api-key": "KEY"},
    ],
)
def test_where_a_key_may_stand(ring: KeyRing, headers: dict[str, str]) -> None:
    key = ring.create("one")
    guard = ring.guard(headers=("X-Goog-Api-Key",))
    sent = {name: value.replace("KEY", key) for name, value in headers.items()}
    raw = {name.encode(): value.encode() for name, value in sent.items()}
    for reader in (read_text(sent), read_bytes(raw)):
        made = guard.gate(INFERENCE, reader)
        assert made is not None
        assert outcome(made) == "one"


def test_wrong_keys(ring: KeyRing) -> None:
    key = ring.create("one")
    other = ring.create("two")
    guard = ring.guard()
    invalid = (Code.UNAUTHENTICATED, "the API key is not valid")
    for wrong in (
        key[:-1],
        key + "x",
        key[:17] + other[17:],
        key[:18],
        "sk-naiad-",
        "sk-naiad-00000000-" + key[18:],
        "\xff",
        "x" * 9000,
    ):
        result = outcome(gate(guard, wrong))
        assert result in (invalid, (Code.UNAUTHENTICATED, MISSING)), wrong


def test_no_error_or_repr_contains_a_secret(ring: KeyRing) -> None:
    key = ring.create("one", scopes=("metadata",))
    entered = gate(ring.guard(), key).enter()
    assert isinstance(entered, NaiadError)
    assert key[18:] not in repr(entered) + entered.message + repr(ring.table) + repr(ring.document)


def test_a_scope_is_required(ring: KeyRing) -> None:
    key = ring.create("one", scopes=("metadata",))
    guard = ring.guard()
    code, message = refusal(gate(guard, key))
    assert code is Code.PERMISSION_DENIED
    assert message.endswith("does not have the scope 'inference'")
    assert outcome(gate(guard, key, UNCLASSIFIED)) == "one"


def test_a_model_that_the_key_may_not_see_is_unknown(ring: KeyRing) -> None:
    key = ring.create("one", models=("llama*", "digits"))
    guard = ring.guard()
    assert outcome(gate(guard, key, model="llama-3")) == "one"
    assert outcome(gate(guard, key, model="digits")) == "one"
    unknown = (Code.NOT_FOUND, "Request for unknown model: 'digits2' is not found")
    assert outcome(gate(guard, key, model="digits2")) == unknown


def test_a_revoked_key_fails_its_next_request(ring: KeyRing) -> None:
    key = ring.create("one")
    kept = gate(ring.guard(), key)
    assert outcome(kept) == "one"
    assert isinstance(kept.enter_fast(), Admission)
    ring.revoke(key)
    assert kept.enter_fast() is None
    code, message = refusal(kept)
    assert code is Code.UNAUTHENTICATED
    assert message.endswith("was revoked")
    assert kept.enter_fast() is None


def test_an_expired_key_fails_its_next_request(ring: KeyRing) -> None:
    key = ring.create("one", expires_at=ring.time.now.replace(hour=1))
    kept = gate(ring.guard(), key)
    assert outcome(kept) == "one"
    ring.time.advance(minutes=59)
    assert kept.enter_fast() is not None
    ring.time.advance(minutes=1)
    assert kept.enter_fast() is None
    assert refusal(kept)[1].endswith("has expired")


def test_the_old_secret_is_valid_for_the_grace_period(ring: KeyRing) -> None:
    old = ring.create("one")
    kept = gate(ring.guard(), old)
    new = ring.rotate(old, hours=1)
    assert outcome(kept) == outcome(gate(ring.guard(), new)) == "one"
    ring.time.advance(hours=1)
    assert refusal(kept)[1].endswith("has a new secret")
    assert outcome(gate(ring.guard(), new)) == "one"
    newest = ring.rotate(new)
    assert refusal(gate(ring.guard(), new))[0] is Code.UNAUTHENTICATED
    assert outcome(gate(ring.guard(), newest)) == "one"


def test_a_key_that_comes_back_is_valid_again(ring: KeyRing) -> None:
    key = ring.create("one")
    kept = gate(ring.guard(), key)
    whole = ring.document
    ring.revoke(key)
    assert refusal(kept)[0] is Code.UNAUTHENTICATED
    ring.table.replace(whole)
    assert outcome(kept) == "one"


def test_a_static_key_may_do_everything_except_manage_keys() -> None:
    ring = KeyRing(static_keys=("first", "second"))
    guard = ring.guard()
    assert outcome(gate(guard, "first")) == outcome(gate(guard, "second")) == "--api-key"
    assert outcome(gate(guard, "second", "model-repository")) == "--api-key"
    assert refusal(gate(guard, "second", KEYS))[0] is Code.PERMISSION_DENIED
    assert refusal(gate(guard, "first,second"))[0] is Code.UNAUTHENTICATED


def test_requests_are_counted_by_key(ring: KeyRing) -> None:
    key = ring.create("one")
    guard = ring.guard()
    kept = gate(guard, key)
    for _ in range(3):
        kept.enter()
    kept.enter_fast()
    kept.check()
    (account,) = guard.accounts.all()
    assert account.num_requests == 4
