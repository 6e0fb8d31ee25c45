"""Sessions of the console."""

from __future__ import annotations

from naiad.keys.guard import Guard
from naiad.keys.key_table import NO_PAGE_SECRET
from naiad.keys.secret import PAGE_HEADER, Credential, read_credential
from naiad.keys.session import (
    MAX_KEY_SESSIONS,
    MAX_SESSIONS,
    SESSION_S,
    NewSession,
    Sessions,
    cookie_name,
    read_session,
)
from tests.fakes.keys import KeyRing

CREDENTIAL = Credential("abcdefgh", b"s", b"t")
HOST = b"localhost:8000"


def headers(token: str, host: bytes = HOST, secret: str = "") -> dict[str, bytes]:
    cookie = b"theme=dark; %b=%b" % (cookie_name(HOST), token.encode())
    return {"cookie": cookie, "host": host, PAGE_HEADER: secret.encode()}


def read(session: NewSession) -> Credential:
    credential = read_session(headers(session.token).get)
    assert credential is not None
    return credential


def open_session(ring: KeyRing, user: int | None = None) -> NewSession:
    return ring.table.open_session(read_credential(ring.create("anna").encode()), "anna", user)


def test_a_session_stands_for_its_key_until_it_is_closed() -> None:
    ring = KeyRing()
    generation = ring.table.generation
    session = read(open_session(ring))
    identity = ring.table.find(session).identity
    assert identity is not None
    assert identity.name == "anna"
    ring.table.close_session(session.session_hash)
    assert ring.table.find(session).reason == "the session has ended; sign in again"
    assert ring.table.generation > generation


def test_a_session_ends_after_twelve_hours() -> None:
    ring = KeyRing()
    session = read(open_session(ring))
    finding = ring.table.find(session)
    assert finding.valid_until_s == ring.time() + SESSION_S
    ring.time.advance(hours=12)
    assert ring.table.find(session).identity is None


def test_the_cookie_of_another_port_is_another_session() -> None:
    assert read_session(headers("x", b"localhost:9000").get) is None
    assert read_session(lambda _name: None) is None
    assert cookie_name(b"example.com") == b"naiad_session"


def test_a_request_that_changes_something_needs_the_secret_of_the_page() -> None:
    ring = KeyRing()
    session = open_session(ring)
    guard = Guard(ring.table)

    def reason(secret: str, *, changes: bool) -> str:
        finding = guard.identify(headers(session.token, secret=secret).get, changes=changes)
        assert finding is not None
        return finding.reason

    assert reason("", changes=False) == ""
    assert reason(session.secret, changes=True) == ""
    assert reason("", changes=True) == reason("x", changes=True) == NO_PAGE_SECRET


def test_a_session_belongs_to_the_user_who_opened_it() -> None:
    """A connection of another user, or of nobody who is known, is not let in."""
    ring = KeyRing()
    session = open_session(ring, user=1001)
    gate = Guard(ring.table).gate("statistics", headers(session.token).get, changes=False)
    assert gate is not None
    refusal = gate.enter(None)
    assert "belongs to another user" in getattr(refusal, "message", "")
    assert gate.enter_fast(None) is None


def test_a_key_that_opens_too_many_sessions_ends_its_own() -> None:
    sessions = Sessions(lambda: 0.0)
    other = sessions.open(CREDENTIAL, "other")
    opened = [sessions.open(CREDENTIAL, "greedy") for _ in range(MAX_KEY_SESSIONS + 1)]
    assert sessions.find(read(opened[0]).session_hash) is None
    assert sessions.find(read(opened[1]).session_hash) is not None
    assert sessions.find(read(other).session_hash) is not None


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    sessions = Sessions(lambda: 0.0)
    opened = [sessions.open(CREDENTIAL, str(number)) for number in range(MAX_SESSIONS + 1)]
    assert sessions.find(read(opened[0]).session_hash) is None
    assert sessions.find(read(opened[1]).session_hash) is not None
