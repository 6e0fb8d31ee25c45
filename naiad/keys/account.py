"""What each key has used: requests, refusals and tokens.

In:  admissions and refusals of the guard. Out: counters for metrics and `naiad key usage`.
Rule: an account belongs to a key's id and outlives changes of the key.
"""

from __future__ import annotations

from collections import Counter

from naiad.core.identity import Identity
from naiad.errors import Code, NaiadError

NOBODY = ""
"""The account of refusals that name no valid key."""


class Admission:
    """A request that the guard has let in, until it ends."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def header_lines(self) -> bytes:
        """Header lines for an HTTP response that tell the client what is left of its limits."""
        return b""

    def trailer_fields(self) -> list[tuple[bytes, bytes]]:
        """The same for a gRPC response."""
        return []

    def end(self, status: int) -> None:
        """The response is complete, or its client is gone. Called at least once."""


class LimitError(NaiadError):
    """A key has used up one of its limits."""

    def __init__(self, message: str, retry_after_s: int, fields: list[tuple[str, int]]) -> None:
        """`fields` are the x-ratelimit headers."""
        super().__init__(Code.RESOURCE_EXHAUSTED, message, retry_after_s)
        self.fields = fields

    def header_lines(self) -> bytes:
        return b"".join(b"%b: %d\r\n" % (name.encode(), value) for name, value in self.fields)


class Account:
    __slots__ = ("is_plain", "key_id", "num_requests", "refusals")

    def __init__(self, identity: Identity) -> None:
        self.key_id = identity.key_id
        self.is_plain = True
        """Requests of the key need no bookkeeping beyond `num_requests`."""
        self.num_requests = 0
        self.refusals: Counter[Code] = Counter()

    def admit(self, identity: Identity) -> Admission | NaiadError:
        raise NotImplementedError


class Accounts:
    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self.refusals: Counter[Code] = Counter()
        """Refusals of requests without a valid key."""

    def of(self, identity: Identity) -> Account:
        account = self._accounts.get(identity.key_id)
        if account is None:
            account = self._accounts[identity.key_id] = Account(identity)
        return account

    def all(self) -> list[Account]:
        return list(self._accounts.values())

    def count_refusal(self, account: Account | None, code: Code) -> None:
        (self.refusals if account is None else account.refusals)[code] += 1
