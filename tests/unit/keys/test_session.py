"""Sessions of the console."""

from __future__ import annotations

from naiad.keys.secret import Credential, read_credential
from naiad.keys.session import MAX_SESSIONS, SESSION_S, Sessions, cookie_name, read_session
from tests.fakes.keys import KeyRing

CREDENTIAL = Credential("abcdefgh", b"s", b"t")


def cookie(token: str, host: bytes = b"localhost:8000") -> bytes:
    return b"theme=dark; %b=%b" % (cookie_name(host), token.encode())


def read(token: str) -> Credential:
    credential = read_session(cookie(token), b"localhost:8000")
    assert credential is not None
    return credential


def test_a_session_stands_for_its_key_until_it_is_closed() -> None:
    ring = KeyRing()
    credential = read_credential(ring.create("anna").encode())
    generation = ring.table.generation
    session = read(ring.table.open_session(credential))
    identity = ring.table.find(session).identity
    assert identity is not None
    assert identity.name == "anna"
    ring.table.close_session(session.session_hash)
    assert ring.table.find(session).reason == "the session has ended; sign in again"
    assert ring.table.generation > generation


def test_a_session_ends_after_twelve_hours() -> None:
    ring = KeyRing()
    session = read(ring.table.open_session(read_credential(ring.create("anna").encode())))
    finding = ring.table.find(session)
    assert finding.valid_until_s == ring.time() + SESSION_S
    ring.time.advance(hours=12)
    assert ring.table.find(session).identity is None


def test_the_cookie_of_another_port_is_another_session() -> None:
    assert read_session(cookie("x", b"localhost:8000"), b"localhost:9000") is None
    assert read_session(b"", b"localhost:8000") is None
    assert cookie_name(b"example.com") == b"naiad_session"


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    sessions = Sessions(lambda: 0.0)
    tokens = [sessions.open(CREDENTIAL) for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(read(tokens[0]).session_hash) is None
    assert sessions.find(read(tokens[1]).session_hash) is not None
