"""Client certificates that stand for keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.errors import Code, NaiadError
from naiad.keys import key_change
from naiad.keys.account import Admission
from naiad.keys.api_class import INFERENCE
from naiad.keys.certificate import canonical_name, read_names
from naiad.keys.guard import read_text
from naiad.keys.key_change import NewKey
from tests.fakes.keys import KeyRing

ALICE = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc."),),
        (("commonName", "alice"),),
    ),
    "subjectAltName": (
        ("DNS", "Alice.Example.com"),
        ("URI", "spiffe://example.com/alice"),
        ("email", "alice@example.com"),
        ("URI", "a\nb"),
    ),
    "notAfter": "Jan  1 01:00:00 2030 GMT",
}


class Peer(asyncio.BaseTransport):
    """A connection with a client certificate."""

    def __init__(self, certificate: Any = None) -> None:
        super().__init__({"peercert": certificate})


def test_names_of_a_certificate() -> None:
    names = read_names(ALICE)
    assert names.names == (
        "CN=alice,O=Example\\, Inc.,C=DE",
        "URI:spiffe://example.com/alice",
        "DNS:alice.example.com",
    )
    assert names.end_s == KeyRing().time() + 3600


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("CN=alice, O=Example\\, Inc. , C=DE", "CN=alice,O=Example\\, Inc.,C=DE"),
        ("commonName=alice;o=Example\\2C Inc.", "CN=alice,O=Example\\, Inc."),
        ("OU=b+CN=a,O=x", "CN=a+OU=b,O=x"),
        ("CN=J\\C3\\BCrgen", "CN=Jürgen"),
        ("CN=\\ a\\ ", "CN=\\ a\\ "),
        ("CN=\\#1", "CN=\\#1"),
        ("1.2.3=x", "1.2.3=x"),
        ("CN=", "CN="),
        ("dns:A.example", "DNS:a.example"),
        ("uri:spiffe://A/b", "URI:spiffe://A/b"),
    ],
)
def test_texts_become_canonical(text: str, canonical: str) -> None:
    assert canonical_name(text) == canonical
    assert canonical_name(canonical) == canonical


@pytest.mark.parametrize(
    "text", ["", "alice", "CN", "=x", "CN=a,", "CN=a,b", "CN=a\\", "CN=\\FF", "a\nCN=b", "DNS:"]
)
def test_texts_that_are_not_names(text: str) -> None:
    with pytest.raises(NaiadError):
        canonical_name(text)


class Rig:
    def __init__(self) -> None:
        self.ring = KeyRing()
        gate = self.ring.guard().gate(INFERENCE, read_text({}))
        assert gate is not None
        self.gate = gate

    def name(self, certificate: Any) -> str:
        """The name of the key that is let in, or the message of the refusal."""
        results = [self.gate.enter(Peer(certificate)), self.gate.check(Peer(certificate))]
        texts = [
            entered.message if isinstance(entered, NaiadError) else entered.identity.name
            for entered in results
        ]
        assert texts[0] == texts[1]
        return texts[0]


@pytest.mark.parametrize(
    "subject",
    [
        "CN=alice,O=Example\\, Inc.,C=DE",
        "URI:spiffe://example.com/alice",
        "DNS:alice.example.com",
    ],
)
def test_a_certificate_stands_for_a_key(subject: str) -> None:
    rig = Rig()
    rig.ring.create("one", client_subjects=(subject,))
    assert rig.name(ALICE) == "one"
    assert isinstance(rig.gate.enter_fast(Peer(ALICE)), Admission)
    assert "an API key is required" in rig.name(None)


def test_one_head_on_connections_of_different_clients() -> None:
    rig = Rig()
    rig.ring.create("alice", client_subjects=("DNS:alice.example.com",))
    rig.ring.create("bob", client_subjects=("CN=bob",))
    bob = {**ALICE, "subject": ((("commonName", "bob"),),), "subjectAltName": ()}
    assert [rig.name(ALICE), rig.name(bob), rig.name(ALICE)] == ["alice", "bob", "alice"]
    stranger = {**bob, "subject": ((("commonName", "eve"),),)}
    assert rig.name(stranger).startswith("no API key is for the client certificate 'CN=eve'")


def test_a_header_counts_before_the_certificate() -> None:
    ring = KeyRing()
    ring.create("certificate", client_subjects=("DNS:alice.example.com",))
    gate = ring.guard().gate(INFERENCE, read_text({"x-api-key": ring.create("header")}))
    assert gate is not None
    entered = gate.enter(Peer(ALICE))
    assert isinstance(entered, Admission)
    assert entered.identity.name == "header"


def test_a_revoked_key_fails_on_an_open_connection() -> None:
    rig, peer = Rig(), Peer(ALICE)
    key = rig.ring.create("one", client_subjects=("DNS:alice.example.com",))
    assert isinstance(rig.gate.enter(peer), Admission)
    rig.ring.revoke(key)
    assert rig.gate.enter_fast(peer) is None
    refused = rig.gate.enter(peer)
    assert isinstance(refused, NaiadError)
    assert refused.code is Code.UNAUTHENTICATED
    assert refused.message.endswith("was revoked")
    rig.ring.create("two", client_subjects=("DNS:alice.example.com",))
    assert rig.name(ALICE) == "two"


def test_a_certificate_fails_on_an_open_connection_when_it_expires() -> None:
    rig, peer = Rig(), Peer(ALICE)
    rig.ring.create("one", client_subjects=("DNS:alice.example.com",))
    assert isinstance(rig.gate.enter(peer), Admission)
    rig.ring.time.advance(hours=1)
    assert rig.gate.enter_fast(peer) is None
    assert rig.name(ALICE) == "the client certificate 'DNS:alice.example.com' has expired"


def test_two_keys_cannot_have_one_subject() -> None:
    ring = KeyRing()
    ring.create("one", client_subjects=("CN=a",))
    with pytest.raises(NaiadError, match="has the subject 'CN=a' already"):
        key_change.create(
            ring.document, NewKey(name="two", client_subjects=("CN=a",)), ring.time.now
        )
    with pytest.raises(NaiadError, match="must be written as 'CN=a,O=b'"):
        ring.create("three", client_subjects=("CN=a, O=b",))
