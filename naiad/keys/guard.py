"""The guard: decides, for every request of every endpoint, who sends it and whether it may.

In:  the credential and the API class of a request, from its head alone: no body has been read and
     nothing has been allocated. Out: an Admission, or the error that the client gets.
A Gate is what the guard makes of one request head. Heads repeat and are cached with their gate, so
that a repeated request costs one comparison of generations.
Rule: a gate asks the key table again whenever the table has changed, so that a revoked key fails
      its next request on every connection.
"""

from __future__ import annotations

import time
from asyncio import BaseTransport
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

from naiad.core.identity import Identity
from naiad.errors import Code, NaiadError
from naiad.keys.account import Account, Accounts, Admission, EntranceFacts
from naiad.keys.api_class import METRICS, OPEN_BY_DEFAULT, PAGE, UNCLASSIFIED, check_class, scope_of
from naiad.keys.certificate import peer_certificate, read_names
from naiad.keys.forwarded import NO_PROXIES, NO_TRAIL, Trail, TrustedProxies, read_trail
from naiad.keys.key_table import MISSING, Finding, KeyTable
from naiad.keys.secret import MAX_TOKEN_BYTES, Credential, read_credential
from naiad.keys.session import NewSession, read_session
from naiad.machine.peer_user import transport_user

AUTHORIZATION = "authorization"
API_KEY_HEADER = "x-api-key"
_BEARER = b"bearer "
_FOREIGN_SESSION = "the session belongs to another user of the server's machine; sign in"
MAX_CERTIFICATES = 1000
"""How many certificates are remembered for one request head."""

OnRefused: TypeAlias = Callable[[str, EntranceFacts, NaiadError], None]
"""Called with the id of the key, empty if there is none, and the error."""


class Guard:
    def __init__(
        self,
        table: KeyTable,
        *,
        headers: tuple[str, ...] = (),
        guarded_apis: frozenset[str] = frozenset(),
        accounts: Accounts | None = None,
        on_refused: OnRefused | None = None,
        clock_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """`headers` are the operator's own names of headers that may hold a key. `guarded_apis` are
        classes that need a key although they are open by default. `on_refused` is the audit log; it
        is None where nobody listens. `proxies` tell the addresses of their clients."""
        self.proxies = proxies
        self.on_refused = on_refused
        self.table = table
        self.accounts = accounts or Accounts(clock_s, steady_s=steady_s)
        self.clock_s = clock_s
        self.header_names = tuple(
            dict.fromkeys([*(name.lower() for name in headers), AUTHORIZATION, API_KEY_HEADER])
        )
        self._open_apis = (OPEN_BY_DEFAULT | {PAGE}) - guarded_apis
        self.guards_metrics_port = METRICS in guarded_apis

    def gate(
        self,
        api: str,
        header: Callable[[str], bytes | None],
        model_name: str = "",
        hidden: NaiadError | None = None,
        *,
        counts_tokens: bool = False,
        changes: bool = True,
    ) -> Gate | CertificateGate | None:
        """Returns None for an API that is open. `header` reads a header of the request by its
        lower-case name. `hidden` is the error for a model that the key may not see.
        `counts_tokens` is True for an endpoint that reports the tokens of its requests. `changes`
        is False for a request that only reads."""
        check_class(api, "a request")
        api = scope_of(api)
        if api in self._open_apis:
            return None
        credential = self._credential(header, changes=changes)

        trail = read_trail(header) if self.on_refused is not None else NO_TRAIL

        def build(credential: Credential | None) -> Gate:
            return Gate(self, api, credential, model_name, hidden, counts_tokens, trail)

        return CertificateGate(build) if credential is None else build(credential)

    def enter(self, identity: Identity, facts: EntranceFacts) -> Admission | NaiadError:
        """One more request of a key that may send it. The error is a limit that the key has
        reached."""
        account = self.accounts.of(identity)
        if account.is_plain and not facts.counts_tokens:
            account.num_requests += 1
            return Admission(identity)
        entered = account.admit(identity, facts)
        if isinstance(entered, NaiadError):
            self.refuse(account, identity.key_id, facts, entered)
        return entered

    def refuse(
        self, account: Account | None, key_id: str, facts: EntranceFacts, error: NaiadError
    ) -> None:
        """Counts a request that is refused. `account` is None if it has no valid key."""
        self.accounts.count_refusal(account, error.code)
        if self.on_refused is not None:
            self.on_refused(key_id, facts, error)

    def identify(
        self,
        header: Callable[[str], bytes | None],
        peer: BaseTransport | None = None,
        *,
        changes: bool = False,
    ) -> Finding | None:
        """Returns the owner of a request's key, for pages that are open to everybody. None without
        a key."""
        credential = self._credential(header, changes=changes)
        finding = None if credential is None else self.table.find(credential)
        if finding is not None and not _is_of(finding.user, peer):
            return Finding(reason=_FOREIGN_SESSION)
        return finding

    def client_address(
        self, header: Callable[[str], bytes | None], peer: BaseTransport | None
    ) -> str:
        """The address of the client, as far as trusted proxies tell."""
        return self.proxies.client(_address(peer), read_trail(header))

    def open_session(self, header: Callable[[str], bytes | None], identity: Identity) -> NewSession:
        """Opens a session for a process of the server, which stands for the key of a request that
        the guard has let in."""
        credential = self._credential(header)
        assert credential is not None
        return self.table.open_session(credential, identity.key_id)

    def _credential(
        self, header: Callable[[str], bytes | None], *, changes: bool = False
    ) -> Credential | None:
        """None if the request has no key. Where several headers could hold one, a key of ours
        counts before a signed token, and that before any other text. A session of the console
        counts if there is no header with a key."""
        credentials: list[Credential] = []
        for name in self.header_names:
            value = header(name)
            if not value or len(value) > MAX_TOKEN_BYTES:
                continue
            if value[: len(_BEARER)].lower() == _BEARER:
                value = value[len(_BEARER) :].strip()
            elif name == AUTHORIZATION:
                continue
            credentials.append(read_credential(value))
        ours = [credential for credential in credentials if credential.key_id]
        signed = [credential for credential in credentials if credential.signed_token]
        if credentials:
            return next(iter(ours or signed or credentials))
        return read_session(header, changes=changes)


class Gate:
    """What the guard knows about requests with one head."""

    __slots__ = (
        "_account",
        "_api",
        "_counts_tokens",
        "_credential",
        "_generation",
        "_guard",
        "_hidden",
        "_key_id",
        "_model_name",
        "_plain",
        "_refusal",
        "_trail",
        "_user",
        "_valid_until_s",
    )

    def __init__(
        self,
        guard: Guard,
        api: str,
        credential: Credential | None,
        model_name: str,
        hidden: NaiadError | None,
        counts_tokens: bool,
        trail: Trail = NO_TRAIL,
    ) -> None:
        self._guard = guard
        self._trail = trail
        self._counts_tokens = counts_tokens
        self._api = api
        self._credential = credential
        self._model_name = model_name
        self._hidden = hidden
        self._generation = 0
        self._key_id = ""
        """The key whose secret the client knows, whether it is valid or not."""
        self._valid_until_s: float | None = None
        self._user: int | None = None
        self._refusal: NaiadError | None = None
        self._account: Account | None = None
        self._plain: Admission | None = None
        """Shared by all requests of a key that has no limits."""

    def enter(self, peer: BaseTransport | None = None) -> Admission | NaiadError:
        """One more request, from `peer`. The error says why it is refused."""
        admission = self.check(peer)
        if isinstance(admission, NaiadError):
            return self._refuse(admission, peer)
        account = self._account
        assert account is not None
        if account.is_plain and not self._counts_tokens:
            account.num_requests += 1
            return admission
        entered = account.admit(admission.identity, self._facts(peer))
        return self._refuse(entered, peer) if isinstance(entered, NaiadError) else entered

    def _refuse(self, error: NaiadError, peer: BaseTransport | None) -> NaiadError:
        self._guard.refuse(self._account, self._key_id, self._facts(peer), error)
        return error

    def _facts(self, peer: BaseTransport | None) -> EntranceFacts:
        """The address is looked up only where the audit log needs it."""
        guard, trail = self._guard, self._trail
        address = "" if guard.on_refused is None else guard.proxies.client(_address(peer), trail)
        return EntranceFacts(
            self._api, self._model_name, address, self._counts_tokens, trail.request_id
        )

    def enter_fast(
        self, peer: BaseTransport | None = None, model_name: str = ""
    ) -> Admission | None:
        """Like `enter`, for the fast path: None if the request must take the full path, which
        refuses it or asks again. Nothing has been counted then. `model_name` is given where the
        head does not name the model."""
        account, plain = self._account, self._plain
        if account is None or plain is None or not self.is_current or self._refusal is not None:
            return None
        if self._user is not None:
            return None
        if model_name and not plain.identity.may_see(model_name):
            return None
        if account.is_plain:
            account.num_requests += 1
            return plain
        if account.limits.has_tokens:
            return None  # the full path knows which requests use tokens
        admission = account.admit(plain.identity, self._facts(peer))
        if isinstance(admission, NaiadError):
            return None
        if model_name:
            admission.note_model(model_name)
        return admission

    @property
    def is_current(self) -> bool:
        """False if the key table must be asked again."""
        return self._generation == self._guard.table.generation and (
            self._valid_until_s is None or self._guard.clock_s() < self._valid_until_s
        )

    def check(self, peer: BaseTransport | None = None) -> Admission | NaiadError:
        """Like `enter`, but nothing is counted: a stream may be opened."""
        if not self.is_current:
            self._resolve()
        if not _is_of(self._user, peer):
            return NaiadError(Code.UNAUTHENTICATED, _FOREIGN_SESSION)
        if self._refusal is not None:
            return self._refusal
        assert self._plain is not None
        return self._plain

    def _resolve(self) -> None:
        guard = self._guard
        self._generation = guard.table.generation
        self._account = self._plain = self._valid_until_s = self._user = None
        if self._credential is None:
            self._refusal = NaiadError(Code.UNAUTHENTICATED, MISSING)
            return
        finding = guard.table.find(self._credential)
        self._key_id = finding.key_id
        self._valid_until_s = finding.valid_until_s
        self._user = finding.user
        if finding.identity is None:
            self._refusal = NaiadError(Code.UNAUTHENTICATED, finding.reason)
            return
        self._account = guard.accounts.of(finding.identity)
        self._refusal = self._forbidden(finding.identity)
        self._plain = Admission(finding.identity)

    def _forbidden(self, identity: Identity) -> NaiadError | None:
        if self._api != UNCLASSIFIED and self._api not in identity.scopes:
            return NaiadError(
                Code.PERMISSION_DENIED,
                f"the API key '{identity.key_id}' does not have the scope '{self._api}'",
            )
        if self._model_name and not identity.may_see(self._model_name):
            return self._hidden or unknown_model(self._model_name)
        return None


class CertificateGate:
    """What the guard knows about requests with one head that has no key: the certificate of the
    connection tells who sends them."""

    __slots__ = ("_build", "_gates", "_without")

    def __init__(self, build: Callable[[Credential | None], Gate]) -> None:
        self._build = build
        self._without = build(None)
        self._gates: dict[Hashable, Gate] = {}

    def enter(self, peer: BaseTransport | None = None) -> Admission | NaiadError:
        return self._gate(peer).enter(peer)

    def check(self, peer: BaseTransport | None = None) -> Admission | NaiadError:
        return self._gate(peer).check()

    def enter_fast(
        self, peer: BaseTransport | None = None, model_name: str = ""
    ) -> Admission | None:
        return self._gate(peer).enter_fast(peer, model_name)

    @property
    def is_current(self) -> bool:
        """False, because only a request tells the connection."""
        return False

    def _gate(self, peer: BaseTransport | None) -> Gate:
        certificate = peer_certificate(peer)
        if certificate is None:
            return self._without
        key = (
            certificate.get("subject"),
            certificate.get("subjectAltName"),
            certificate.get("notAfter"),
        )
        gate = self._gates.get(key)
        if gate is None:
            if len(self._gates) >= MAX_CERTIFICATES:
                self._gates.clear()
            gate = self._build(Credential("", b"", b"", certificate=read_names(certificate)))
            self._gates[key] = gate
        return gate


class ClosedGate:
    """Refuses every request with one head, whatever key it has."""

    __slots__ = ("_refusal",)

    def __init__(self, refusal: NaiadError) -> None:
        self._refusal = refusal

    def enter(self, peer: BaseTransport | None = None) -> NaiadError:
        return self._refusal

    def check(self, peer: BaseTransport | None = None) -> NaiadError:
        return self._refusal

    def enter_fast(self, peer: BaseTransport | None = None, model_name: str = "") -> None:
        return None

    @property
    def is_current(self) -> bool:
        return False


Entrance: TypeAlias = Gate | CertificateGate | ClosedGate


def unknown_model(name: str) -> NaiadError:
    """Triton's error for a model that does not exist."""
    return NaiadError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


def _is_of(user: int | None, peer: BaseTransport | None) -> bool:
    """`user` is None for what belongs to nobody on this machine."""
    return user is None or transport_user(peer) == user


def _address(peer: BaseTransport | None) -> str:
    name = None if peer is None else peer.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def read_bytes(headers: Mapping[bytes, bytes]) -> Callable[[str], bytes | None]:
    """Reads headers of HTTP/1.1."""
    return lambda name: headers.get(name.encode())


def read_text(metadata: Mapping[str, str]) -> Callable[[str], bytes | None]:
    """Reads metadata of gRPC."""

    def read(name: str) -> bytes | None:
        value = metadata.get(name)
        return None if value is None else value.encode("latin-1")

    return read
