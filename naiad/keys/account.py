"""What each key uses, and its limits: requests and tokens per minute, requests in flight, and
tokens per day.

In:  admissions and refusals of the guard; tokens from the endpoints of language models. Out:
     LimitError; counters for metrics and `naiad key usage`.
Rule: an account belongs to a key's id and outlives changes of the key. Tokens are reserved before a
      request starts and settled when it ends, so that requests at the same time cannot exceed a
      limit together.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from naiad.core.identity import NO_LIMITS, Identity, KeyLimits
from naiad.errors import Code, NaiadError
from naiad.keys.window import DayCounter, MinuteWindow

MAX_IDLE_ACCOUNTS = 100_000
RateFields: TypeAlias = list[tuple[str, int]]
OnEnd: TypeAlias = "Callable[[MeteredAdmission, int], None]"
"""Called with (admission, status) when a request ends: the audit log."""


class LimitPart(msgspec.Struct, frozen=True):
    """The part of every limit that one of several processes allows, so that all of them together
    allow the limit."""

    index: int = 0
    count: int = 1

    def of(self, limits: KeyLimits) -> KeyLimits:
        """A limit below `count` cannot be divided: each process allows one then."""
        if self.count == 1 or not limits.has_any:
            return limits
        return KeyLimits(
            self._divide(limits.requests_per_minute),
            self._divide(limits.tokens_per_minute),
            self._divide(limits.max_parallel),
            self._divide(limits.tokens_per_day),
        )

    def _divide(self, limit: int | None) -> int | None:
        if not limit:
            return limit
        return max(1, limit // self.count + (self.index < limit % self.count))

    @property
    def note(self) -> str:
        """What the error about a limit adds."""
        return "" if self.count == 1 else f" here, at one of {self.count} routers"


WHOLE = LimitPart()


class EntranceFacts(NamedTuple):
    """What the guard knows about a request from its head and its connection."""

    api: str = ""
    model_name: str = ""
    address: str = ""
    counts_tokens: bool = False
    """The endpoint reports the tokens of the request."""
    request_id: str = ""


class LimitError(NaiadError):
    """A key has used up one of its limits."""

    def __init__(self, message: str, wait_s: float | None, fields: RateFields) -> None:
        """`fields` are the x-ratelimit headers; `wait_s` is None where waiting does not help."""
        wait = None if wait_s is None else max(1, math.ceil(wait_s))
        super().__init__(Code.RESOURCE_EXHAUSTED, message, wait)
        self.fields = fields

    def header_lines(self) -> bytes:
        return render_lines(self.fields)


class Admission:
    """A request that the guard has let in, until it ends. This one has no limits, and all requests
    of its key may share it."""

    __slots__ = ("identity",)
    needs_tokens = False
    """True if the tokens of the request must be reserved before it starts."""
    is_undecided = False
    """True while another process must decide whether the key has reached a limit: nothing may be
    sent before `decide` has called back."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def rate_fields(self) -> RateFields:
        """Returns what is left of the limits, as the x-ratelimit headers show it."""
        return []

    def header_lines(self) -> bytes:
        """Header lines for an HTTP response that tell the client what is left of its limits."""
        return b""

    def trailer_fields(self) -> list[tuple[bytes, bytes]]:
        """Returns the limits for a gRPC response."""
        return []

    def decide(self, then: Callable[[LimitError | None], None]) -> None:
        """Calls `then` with the refusal, or with None if the request has been let in."""
        then(None)

    def note_request_id(self, request_id: str) -> None:
        """The server has made an id for the request."""

    def note_model(self, name: str) -> None:
        """The request is for this model, which its head did not name."""

    def reserve(self, num_tokens: int) -> None:
        """The request may use so many tokens. Raises LimitError if the key may not."""

    def settle(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """What the request has used up to now."""

    def end(self, status: int) -> None:
        """The response is complete, or its client is gone. Called at least once."""


class OwnAdmission(Admission):
    """The admission of a single request, which says what the request uses."""

    __slots__ = ("_is_ended", "model_name", "num_output_tokens", "num_prompt_tokens")

    def __init__(self, identity: Identity, model_name: str = "") -> None:
        super().__init__(identity)
        self._is_ended = False
        self.model_name = model_name
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0

    def header_lines(self) -> bytes:
        return render_lines(self.rate_fields())

    def trailer_fields(self) -> list[tuple[bytes, bytes]]:
        return render_fields(self.rate_fields())

    def note_model(self, name: str) -> None:
        self.model_name = name

    def settle(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens


class MeteredAdmission(OwnAdmission):
    __slots__ = (
        "_account",
        "_reserved",
        "_reserved_at",
        "address",
        "api",
        "request_id",
        "start_s",
    )

    def __init__(
        self, identity: Identity, account: Account, now_s: float, entrance: EntranceFacts
    ) -> None:
        super().__init__(identity, entrance.model_name)
        self.api = entrance.api
        self.address = entrance.address
        self.request_id = entrance.request_id
        self._account = account
        self._reserved = 0
        self._reserved_at = (now_s, account.steady_s())
        self.start_s = now_s

    def note_request_id(self, request_id: str) -> None:
        self.request_id = request_id

    @property
    def needs_tokens(self) -> bool:  # type: ignore[override]
        return self._account.limits.has_tokens and not self._reserved

    def rate_fields(self) -> RateFields:
        return self._account.rate_fields()

    def reserve(self, num_tokens: int) -> None:
        self._account.reserve(num_tokens)
        self._reserved += num_tokens
        self._reserved_at = (self._account.clock_s(), self._account.steady_s())

    def end(self, status: int) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        used = self.num_prompt_tokens + self.num_output_tokens
        if not used and not _has_failed(status):
            # Nobody has counted: an endpoint of Triton's protocol, or a client that left early.
            used = self._reserved
        self._account.end(self._reserved, used, self._reserved_at)
        self._account.count_tokens(self.num_prompt_tokens, self.num_output_tokens)
        if self._account.on_end is not None:
            self._account.on_end(self, status)


class Account:
    """Limits and usage of one key."""

    def __init__(
        self,
        identity: Identity,
        clock_s: Callable[[], float],
        on_end: OnEnd | None,
        part: LimitPart = WHOLE,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._part = part
        self.key_id = identity.key_id
        self.clock_s = clock_s
        self.steady_s = steady_s
        self.on_end = on_end
        self.key_limits: KeyLimits = NO_LIMITS
        """The limits of the key."""
        self.limits: KeyLimits = NO_LIMITS
        """The part of them that this process allows."""
        self.is_plain = True
        """Requests of the key need no bookkeeping beyond `num_requests`."""
        self.num_requests = 0
        self.num_parallel = 0
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.refusals: Counter[Code] = Counter()
        self.tokens_today = DayCounter()
        self._requests = MinuteWindow()
        self._tokens = MinuteWindow()
        self.set_limits(identity.limits)

    def set_limits(self, limits: KeyLimits) -> None:
        self.key_limits = limits
        self.limits = self._part.of(limits)
        self.is_plain = not limits.has_any and self.on_end is None

    def admit(self, identity: Identity, entrance: EntranceFacts) -> Admission | LimitError:
        """Nothing is counted if the result is an error."""
        now_s, limits = self.clock_s(), self.limits
        limit = limits.requests_per_minute
        if limit is not None:
            wait_s = self._requests.wait_s(self.steady_s(), 1, limit)
            if wait_s > 0:
                return self._error(f"{limit} requests per minute", wait_s)
        if limits.max_parallel is not None and self.num_parallel >= limits.max_parallel:
            return self._error(f"{limits.max_parallel} requests at a time", 1.0)
        day = limits.tokens_per_day
        if day is not None and self.tokens_today.used(now_s) >= day:
            return self._error(f"{day} tokens per day", self.tokens_today.wait_s(now_s))
        self._requests.add(self.steady_s(), 1)
        self.num_requests += 1
        self.num_parallel += 1
        return MeteredAdmission(identity, self, now_s, entrance)

    def reserve(self, num_tokens: int) -> None:
        """Raises LimitError."""
        now_s, limits = self.clock_s(), self.limits
        limit, day = limits.tokens_per_minute, limits.tokens_per_day
        for name, most in (("minute", limit), ("day", day)):
            if most is not None and num_tokens > most:
                raise self._never(f"{most} tokens per {name}", num_tokens)
        if limit is not None:
            wait_s = self._tokens.wait_s(self.steady_s(), num_tokens, limit)
            if wait_s > 0:
                reason = f"{limit} tokens per minute; the request may need {num_tokens}"
                raise self._error(reason, wait_s)
        if day is not None and self.tokens_today.used(now_s) + num_tokens > day:
            reason = f"{day} tokens per day; the request may need {num_tokens}"
            raise self._error(reason, self.tokens_today.wait_s(now_s))
        self._tokens.add(self.steady_s(), num_tokens)
        self.tokens_today.add(now_s, num_tokens)

    def end(self, num_reserved: int, num_used: int, reserved_at: tuple[float, float]) -> None:
        """A request ends: what it has reserved and not used is given back. `reserved_at` is when it
        was reserved, on the wall clock and on the steady one."""
        self.num_parallel -= 1
        if num_used != num_reserved:
            wall_s, steady_s = reserved_at
            self._tokens.settle(self.steady_s(), num_reserved, num_used, steady_s)
            self.tokens_today.settle(self.clock_s(), num_reserved, num_used, wall_s)

    @property
    def is_idle(self) -> bool:
        """True if the account holds nothing that a limit counts."""
        now_s, today = self.steady_s(), self.tokens_today.used(self.clock_s())
        used = (self._requests.used(now_s), self._tokens.used(now_s), today)
        return not self.num_parallel and not any(used)

    def count_tokens(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self.num_prompt_tokens += num_prompt_tokens
        self.num_output_tokens += num_output_tokens

    def rate_fields(self) -> RateFields:
        now_s, fields = self.steady_s(), RateFields()
        for limit, window, name in (
            (self.limits.requests_per_minute, self._requests, "requests"),
            (self.limits.tokens_per_minute, self._tokens, "tokens"),
        ):
            if limit is not None:
                left = max(0, limit - window.used(now_s))
                reset_s = math.ceil(window.reset_s(now_s))
                fields += [
                    (f"x-ratelimit-limit-{name}", limit),
                    (f"x-ratelimit-remaining-{name}", left),
                    (f"x-ratelimit-reset-{name}", reset_s),
                ]
        return fields

    def _never(self, limit: str, num_tokens: int) -> LimitError:
        return LimitError(
            f"the API key '{self.key_id}' allows {limit}; the request may need {num_tokens}: set "
            f"max_tokens to less, or send a shorter prompt{self._part.note}",
            None,
            self.rate_fields(),
        )

    def _error(self, limit: str, wait_s: float) -> LimitError:
        return LimitError(
            f"the API key '{self.key_id}' has reached its limit of {limit}{self._part.note}",
            wait_s,
            self.rate_fields(),
        )


class Accounts:
    def __init__(
        self,
        clock_s: Callable[[], float] = time.time,
        on_end: OnEnd | None = None,
        part: LimitPart = WHOLE,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_end` is called for every request that ends; None where nobody listens. `part` is what
        this process allows of every limit. `steady_s` is a clock that is never set, for minutes."""
        self._part = part
        self._steady_s = steady_s
        self._clock_s = clock_s
        self._on_end = on_end
        self.on_new: Callable[[Account], None] | None = None
        """Called with an account that has just been made, before it is used."""
        self._accounts: dict[str, Account] = {}
        self._sweep_at = MAX_IDLE_ACCOUNTS
        """The number of accounts at which idle ones are forgotten."""
        self.refusals: Counter[Code] = Counter()
        """Refusals of requests without a valid key."""

    def of(self, identity: Identity) -> Account:
        account = self._accounts.get(identity.key_id)
        if account is None:
            if len(self._accounts) >= self._sweep_at:
                self._forget_idle()
            account = self._open(identity)
            self._accounts[identity.key_id] = account
            if self.on_new is not None:
                self.on_new(account)
        elif account.key_limits is not identity.limits:
            account.set_limits(identity.limits)
        return account

    def _open(self, identity: Identity) -> Account:
        return Account(identity, self._clock_s, self._on_end, self._part, self._steady_s)

    def _forget_idle(self) -> None:
        """Signed tokens can name any number of subjects. An account without requests, tokens or an
        open minute today can be made again."""
        self._accounts = {
            key_id: account for key_id, account in self._accounts.items() if not account.is_idle
        }
        self._sweep_at = max(MAX_IDLE_ACCOUNTS, 2 * len(self._accounts))

    def all(self) -> list[Account]:
        return list(self._accounts.values())

    def count_refusal(self, account: Account | None, code: Code) -> None:
        (self.refusals if account is None else account.refusals)[code] += 1


def _has_failed(status: int) -> bool:
    """True for an error, of HTTP or of gRPC, that is not the client's leaving."""
    return 1 < status < 100 or (status >= 400 and status != 499)


def render_fields(fields: RateFields) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), b"%d" % value) for name, value in fields]


def render_lines(fields: RateFields) -> bytes:
    return b"".join(b"%b: %d\r\n" % (name.encode(), value) for name, value in fields)
