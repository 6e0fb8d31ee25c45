"""The guard of a frontend process.

In:  `KeyState` messages, and requests that the guard lets in or refuses. Out: jobs that name their
     key; messages about requests that do not become jobs.
Rule: a frontend decides who sends a request and what its key may use. Whether the key has reached a
      limit is decided by the server process, when the job arrives there: limits are counted in one
      place. A request that fails here before it becomes a job is announced first, and its response
      waits for the decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from naiad.core.identity import Identity, KeyLimits
from naiad.errors import Code, NaiadError
from naiad.frontend_process.messages import (
    Caller,
    CallerData,
    Ended,
    Enter,
    Entered,
    JobEntrance,
    KeyState,
    Rates,
    RefusalAudited,
    RefusalCounted,
    ToFrontend,
    UnknownTokenKey,
)
from naiad.frontend_process.options import KeyOptions
from naiad.instances.channel import Channel
from naiad.keys.account import (
    Account,
    Accounts,
    Admission,
    EntranceFacts,
    LimitError,
    OwnAdmission,
    RateFields,
)
from naiad.keys.forwarded import TrustedProxies
from naiad.keys.guard import Guard
from naiad.keys.key import decode_document
from naiad.keys.key_table import KeyTable

_SESSION = b"naiad_session"


class RemoteGuard:
    def __init__(
        self, options: KeyOptions, channel: Channel[ToFrontend], flush: Callable[[], None]
    ) -> None:
        """`flush` sends the jobs that wait to be sent. The server process must hear of them before
        it hears of later requests, or of the end of their own."""
        self._channel = channel
        self._flush = flush
        self._is_audited = options.is_audited
        self._table = KeyTable(options.static_keys)
        self._verifier = None if options.make_verifier is None else options.make_verifier()
        self._key_set = b""
        if self._verifier is not None:
            self._verifier.on_change = self._table.change
            self._verifier.on_unknown_key = self._ask_for_keys
            self._table.find_token = self._verifier.find
        self.guard = Guard(
            self._table,
            headers=options.headers,
            guarded_apis=options.guarded_apis,
            accounts=RemoteAccounts(self),
            on_refused=self._on_refused if options.is_audited else None,
            proxies=TrustedProxies(options.trusted_proxies),
        )
        self._callers: dict[Identity, int] = {}
        """The identities that the server process has been told of."""
        self._caller_numbers = count(1)
        self._numbers = count(1)
        self._asking: dict[int, RemoteAdmission] = {}
        """Admissions that wait for `Entered`, by their numbers."""
        self._limited: dict[int, RemoteAdmission] = {}
        """Admissions that wait for `Rates`, by the handles of their jobs."""

    # The keys.

    def update(self, message: KeyState) -> None:
        """Acts on these keys from now on. Raises NaiadError."""
        link = self._channel.link
        link.resolve(message.document)
        link.resolve(message.key_set)
        document, key_set = (bytes(part[0].data) for part in (message.document, message.key_set))
        if self._verifier is not None and key_set and key_set != self._key_set:
            self._verifier.replace(key_set)
            self._key_set = key_set
        self._table.replace(decode_document(document))
        self._callers.clear()

    def _ask_for_keys(self) -> None:
        self._channel.send(UnknownTokenKey())

    # Requests.

    def admit(self, identity: Identity, facts: EntranceFacts) -> RemoteAdmission:
        is_numbered = self._is_audited or facts.counts_tokens or identity.limits.has_tokens
        return RemoteAdmission(identity, self, facts, next(self._numbers) if is_numbered else 0)

    def caller(self, identity: Identity) -> int:
        """The number by which the server process knows an identity."""
        number = self._callers.get(identity)
        if number is None:
            number = self._callers[identity] = next(self._caller_numbers)
            is_stored = self._table.identity(identity.key_id) is not None
            self._channel.send(
                Caller(number, identity.key_id, None if is_stored else _data(identity))
            )
        return number

    def enter(self, admission: RemoteAdmission, status: int | None) -> None:
        """Announces a request that does not become a job. It has ended if `status` is given."""
        if status is None:
            admission.number = admission.number or next(self._numbers)
            self._asking[admission.number] = admission
        self._flush()
        self._channel.send(Enter(self.describe(admission), admission.facts.api, status))

    def describe(self, admission: RemoteAdmission) -> JobEntrance:
        facts = admission.facts
        return JobEntrance(
            self.caller(admission.identity),
            admission.number,
            admission.num_tokens,
            facts.model_name,
            admission.model_name,
            facts.address,
            facts.counts_tokens,
            facts.request_id,
        )

    def await_rates(self, admission: RemoteAdmission, handle: int) -> None:
        self._limited[handle] = admission

    def end(self, admission: RemoteAdmission, status: int) -> None:
        self._asking.pop(admission.number, None)
        self._flush()
        self._channel.send(
            Ended(
                admission.number, status, admission.num_prompt_tokens, admission.num_output_tokens
            )
        )

    def on_entered(self, message: Entered) -> None:
        admission = self._asking.pop(message.number, None)
        if admission is not None:
            admission.on_entered(message)

    def on_rates(self, message: Rates) -> None:
        for handle, fields in message.fields:
            admission = self._limited.pop(handle, None)
            if admission is not None:
                admission.fields = fields

    # Refusals.

    def count_refusal(self, identity: Identity | None, code: Code) -> None:
        self._channel.send(
            RefusalCounted(0 if identity is None else self.caller(identity), code.name)
        )

    def _on_refused(self, key_id: str, facts: EntranceFacts, error: NaiadError) -> None:
        self._channel.send(
            RefusalAudited(
                key_id,
                facts.api,
                facts.model_name,
                facts.address,
                error.code.name,
                facts.request_id,
            )
        )


def has_session(cookies: bytes) -> bool:
    """True for a request that may have a session of the console, which only the server process
    knows."""
    return _SESSION in cookies


class RemoteAdmission(OwnAdmission):
    """A request that the guard of a frontend has let in. If its key has limits, it is not let in
    before the server process says so."""

    __slots__ = (
        "_guard",
        "_is_announced",
        "_then",
        "facts",
        "fields",
        "num_tokens",
        "number",
    )

    def __init__(
        self, identity: Identity, guard: RemoteGuard, facts: EntranceFacts, number: int
    ) -> None:
        """`number` is 0 if the server process ends the admission with its job."""
        super().__init__(identity)
        self._guard = guard
        self._is_announced = False
        """The server process has been told of the request."""
        self._then: Callable[[LimitError | None], None] | None = None
        self.facts = facts
        self.number = number
        self.num_tokens = 0
        """What the server process must reserve."""
        self.fields: RateFields = []
        """What the server process has said about the limits."""

    @property
    def needs_tokens(self) -> bool:  # type: ignore[override]
        return self.identity.limits.has_tokens and not self.num_tokens

    @property
    def is_undecided(self) -> bool:  # type: ignore[override]
        return self.identity.limits.has_any and (not self._is_announced or self._then is not None)

    def decide(self, then: Callable[[LimitError | None], None]) -> None:
        if self._then is None:
            self._then = then
            self._is_announced = True
            self._guard.enter(self, None)

    def on_entered(self, message: Entered) -> None:
        then, self._then = self._then, None
        self.fields = message.fields
        if then is None:
            return
        error = message.error
        if error is None:
            then(None)
        else:
            self._is_ended = True
            then(LimitError(error.message, error.retry_after_s, message.fields))

    def join(self, handle: int) -> JobEntrance:
        """The request becomes a job, or one more."""
        if not self._is_announced and self.identity.limits.has_any:
            self._guard.await_rates(self, handle)
        self._is_announced = True
        return self._guard.describe(self)

    def note_request_id(self, request_id: str) -> None:
        self.facts = self.facts._replace(request_id=request_id)

    def discard(self) -> None:
        """The server process handles the request, and asks its own guard."""
        self._is_announced = self._is_ended = True

    def rate_fields(self) -> RateFields:
        return self.fields

    def reserve(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens

    def end(self, status: int) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._then = None
        if not self._is_announced:
            self._guard.enter(self, status)
        elif self.number:
            self._guard.end(self, status)


class RemoteAccount(Account):
    """An account whose limits and usage are in the server process."""

    def __init__(self, identity: Identity, guard: RemoteGuard) -> None:
        super().__init__(identity, time.time, None)
        self._guard = guard
        self.identity = identity

    def set_limits(self, limits: KeyLimits) -> None:
        self.key_limits = self.limits = limits
        self.is_plain = False

    def admit(self, identity: Identity, entrance: EntranceFacts) -> Admission:
        return self._guard.admit(identity, entrance)


class RemoteAccounts(Accounts):
    def __init__(self, guard: RemoteGuard) -> None:
        super().__init__()
        self._guard = guard

    def of(self, identity: Identity) -> Account:
        account = super().of(identity)
        assert isinstance(account, RemoteAccount)
        account.identity = identity
        return account

    def _open(self, identity: Identity) -> Account:
        return RemoteAccount(identity, self._guard)

    def count_refusal(self, account: Account | None, code: Code) -> None:
        identity = account.identity if isinstance(account, RemoteAccount) else None
        self._guard.count_refusal(identity, code)


def _data(identity: Identity) -> CallerData:
    return CallerData(
        identity.name,
        sorted(identity.scopes),
        identity.models,
        identity.limits,
        identity.priority,
        identity.metadata,
    )
