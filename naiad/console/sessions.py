"""Signing in to the pages: a key becomes a cookie that scripts cannot read.

In:  the guard, and what the process offers. Out: entries for a route table.
Rule: the cookie holds a session and never the key. Without keys, everybody who reaches the pages is
      signed in.
"""

from __future__ import annotations

import msgspec

from naiad import __version__
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.frontends.http.response import respond_error
from naiad.frontends.http.routes import Entry, Names, simple
from naiad.keys.api_class import PAGE, SCOPES
from naiad.keys.guard import Guard, read_bytes
from naiad.keys.secret import read_credential
from naiad.keys.session import SESSION_S, cookie_name, read_session
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.response_head import JSON_TYPE

MAX_BODY_BYTES = 16384
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


class Sessions:
    def __init__(self, guard: Guard | None, options: SessionOptions) -> None:
        """`guard` is None where nobody needs an API key."""
        self._guard = guard
        self._options = options

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
        finding = None if guard is None else guard.identify(read_bytes(exchange.head.headers))
        identity = None if finding is None else finding.identity
        return SessionInfo(
            version=__version__,
            server_name=options.server_name,
            pages=options.pages,
            needs_key=guard is not None,
            is_signed_in=guard is None or identity is not None,
            reason="" if finding is None else finding.reason,
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
        credential = read_credential(body.key.strip().encode("utf-8", "replace"))
        finding = self._guard.table.find(credential)
        if finding.identity is None:
            refusal = NaiadError(Code.UNAUTHENTICATED, finding.reason)
            self._guard.accounts.count_refusal(None, refusal.code)
            respond_error(exchange, refusal)
            return
        token = self._guard.table.open_session(credential)
        self._respond_cookie(exchange, token, SESSION_S)

    def _sign_out(self, exchange: Exchange, _names: Names) -> None:
        headers = exchange.head.headers
        credential = read_session(headers.get(b"cookie", b""), headers.get(b"host", b""))
        if credential is not None and self._guard is not None:
            self._guard.table.close_session(credential.session_hash)
        self._respond_cookie(exchange, "", 0)

    def _respond_cookie(self, exchange: Exchange, token: str, age_s: int) -> None:
        cookie = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict" % (
            cookie_name(exchange.head.headers.get(b"host", b"")),
            token.encode(),
            age_s,
        )
        if self._options.is_tls:
            cookie += b"; Secure"
        exchange.respond(200, _PRIVATE + b"Set-Cookie: %b\r\n" % cookie, b"{}")
