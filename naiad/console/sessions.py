"""Signing in to the pages: a key becomes a cookie that scripts cannot read.

In:  the guard, and what the process offers. Out: entries for a route table.
Rule: the cookie holds a session and never the key. Without keys, everybody who reaches the pages is
      signed in, and only a page with the server's token may change anything
      (naiad.keys.local_gate).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from naiad import __version__
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.frontends.http.response import respond_error
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.keys.api_class import PAGE, SCOPES
from naiad.keys.guard import Guard, read_bytes
from naiad.keys.local_gate import LocalGuard
from naiad.keys.secret import read_credential
from naiad.keys.session import SESSION_S, cookie_name, read_session
from naiad.machine.peer_user import transport_user
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

MAX_BODY_BYTES = 16384
MAX_WRONG_KEYS = 20
"""How many wrong keys one address and user may try in WINDOW_S."""
WINDOW_S = 60.0
_MAX_SENDERS = 10_000
_PRIVATE = JSON_TYPE + b"Cache-Control: no-store\r\n"


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    pages: tuple[str, ...]
    """The pages of this process."""
    has_key_file: bool = False
    is_tls: bool = False
    control_mode: str = ""
    grpc_port: int = 0
    """0 if gRPC is switched off."""
    server_name: str = ""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a page must know before it can show anything."""

    version: str
    server_name: str
    pages: tuple[str, ...]
    needs_key: bool
    """The server requires keys."""
    is_signed_in: bool
    """The page may send requests: with a key, or on a server without keys."""
    change_refusal: str = ""
    """Why the page may look, but not change anything. Empty if it may do what its key may."""
    reason: str = ""
    """Why the session or the key of this request is not valid."""
    key_id: str = ""
    key_name: str = ""
    scopes: list[str]
    models: list[str]
    """Patterns of the models that the key may use."""
    has_key_file: bool
    control_mode: str
    grpc_port: int


class _SignIn(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class _SignedIn(msgspec.Struct, frozen=True):
    secret: str
    """What the page sends as x-naiad-console with every request that changes something."""


class WrongKeys:
    """Counts the wrong keys of each sender."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._counts: dict[tuple[str, int | None], tuple[float, int]] = {}
        """The beginning of a sender's minute, and its wrong keys since then."""

    def wait_s(self, sender: tuple[str, int | None]) -> int:
        """How long the sender must wait; 0 if it need not."""
        start_s, count = self._counts.get(sender, (0.0, 0))
        rest_s = start_s + WINDOW_S - self._clock_s()
        return int(rest_s) + 1 if count >= MAX_WRONG_KEYS and rest_s > 0 else 0

    def add(self, sender: tuple[str, int | None]) -> None:
        now_s = self._clock_s()
        start_s, count = self._counts.pop(sender, (now_s, 0))
        if now_s - start_s >= WINDOW_S:
            start_s, count = now_s, 0
        while len(self._counts) >= _MAX_SENDERS:
            del self._counts[next(iter(self._counts))]
        self._counts[sender] = start_s, count + 1


class Sessions:
    def __init__(
        self, guard: Guard | None, options: SessionOptions, local: LocalGuard | None = None
    ) -> None:
        """`guard` is None where nobody needs an API key. `local` then says who may change
        something; None lets everybody."""
        self._guard = guard
        self._options = options
        self._local = local
        self._wrong = WrongKeys()

    def entries(self) -> list[Entry]:
        path = "/console/api/session"
        return [
            Entry("GET", path, PAGE, simple(self._show)),
            Entry("POST", path, PAGE, simple(self._sign_in, MAX_BODY_BYTES)),
            Entry("DELETE", path, PAGE, simple(self._sign_out, MAX_BODY_BYTES)),
        ]

    def _show(self, exchange: Exchange, _names: Names) -> None:
        exchange.respond(200, _PRIVATE, msgspec.json.encode(self._info(exchange)))

    def _info(self, exchange: Exchange) -> SessionInfo:
        options, guard = self._options, self._guard
        header, peer = read_bytes(exchange.head.headers), exchange.peer
        finding = None if guard is None else guard.identify(header, peer)
        changing = None if guard is None else guard.identify(header, peer, changes=True)
        refusal = (
            None if self._local is None else self._local.gate(exchange.head.headers).enter(peer)
        )
        identity = None if finding is None else finding.identity
        return SessionInfo(
            version=__version__,
            server_name=options.server_name,
            pages=options.pages,
            needs_key=guard is not None,
            is_signed_in=guard is None or identity is not None,
            reason="" if finding is None else finding.reason,
            change_refusal=refusal.message if refusal else changing.reason if changing else "",
            key_id="" if identity is None else identity.key_id,
            key_name="" if identity is None else identity.name,
            scopes=list(SCOPES) if guard is None else sorted(identity.scopes) if identity else [],
            models=["*"] if identity is None else list(identity.models),
            has_key_file=options.has_key_file,
            control_mode=options.control_mode,
            grpc_port=options.grpc_port,
        )

    def _sign_in(self, exchange: Exchange, _names: Names) -> None:
        if self._guard is None:
            respond_error(exchange, invalid_arg("this server requires no API key"))
            return
        try:
            body = msgspec.json.decode(bytes(exchange.body), type=_SignIn)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            respond_error(exchange, invalid_arg(f"the body is not valid: {error}"))
            return
        user = transport_user(exchange.peer)
        header = read_bytes(exchange.head.headers)
        sender = self._guard.client_address(header, exchange.peer), user
        wait_s = self._wrong.wait_s(sender)
        if wait_s:
            respond_error(
                exchange,
                NaiadError(
                    Code.RESOURCE_EXHAUSTED,
                    f"too many wrong keys: more than {MAX_WRONG_KEYS} in a minute; try again in "
                    f"{wait_s} s",
                    retry_after_s=wait_s,
                ),
            )
            return
        credential = read_credential(body.key.strip().encode("utf-8", "replace"))
        finding = self._guard.table.find(credential)
        if finding.identity is None:
            refusal = NaiadError(Code.UNAUTHENTICATED, finding.reason)
            self._guard.accounts.count_refusal(None, refusal.code)
            self._wrong.add(sender)
            respond_error(exchange, refusal)
            return
        session = self._guard.table.open_session(credential, finding.key_id, user)
        answer = msgspec.json.encode(_SignedIn(session.secret))
        self._respond_cookie(exchange, session.token, SESSION_S, answer)

    def _sign_out(self, exchange: Exchange, _names: Names) -> None:
        credential = read_session(read_bytes(exchange.head.headers))
        if credential is not None and self._guard is not None:
            self._guard.table.close_session(credential.session_hash)
        self._respond_cookie(exchange, "", 0)

    def _respond_cookie(
        self, exchange: Exchange, token: str, age_s: int, body: bytes = b"{}"
    ) -> None:
        cookie = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict" % (
            cookie_name(exchange.head.headers.get(b"host", b"")),
            token.encode(),
            age_s,
        )
        if self._options.is_tls:
            cookie += b"; Secure"
        exchange.respond(200, _PRIVATE + b"Set-Cookie: %b\r\n" % cookie, body)
