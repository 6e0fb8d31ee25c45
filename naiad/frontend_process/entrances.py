"""The requests of one frontend process at the guard of the server process.

In:  what the frontend's guard has let in or refused. Out: admissions, counted by the accounts of
     this process; refusals for keys that have reached a limit.
Rule: the frontend has found out who sends a request. Limits, usage, metrics and the audit log are
      this process's.
"""

from __future__ import annotations

from naiad.core.identity import Identity
from naiad.errors import Code, NaiadError
from naiad.frontend_process.messages import (
    Caller,
    CallerData,
    Ended,
    Enter,
    Entered,
    JobEntrance,
    RefusalAudited,
    RefusalCounted,
)
from naiad.ipc.framing import BrokenLinkError
from naiad.ipc.work import WorkError
from naiad.keys.account import Admission, EntranceFacts, LimitError
from naiad.keys.api_class import INFERENCE
from naiad.keys.guard import Guard
from naiad.transport.http1.exchange import CLIENT_GONE

_TOO_MANY = 429


class Entrances:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._callers: dict[int, Identity] = {}
        self._admissions: dict[int, Admission | NaiadError] = {}
        """By the frontend's numbers, until it says that they have ended. An error refuses all jobs
        of its request."""

    def on_caller(self, message: Caller) -> None:
        data = message.data
        identity = (
            self._guard.table.identity(message.key_id)
            if data is None
            else _identity(message.key_id, data)
        )
        # A key that was deleted meanwhile: its last requests count for its account.
        self._callers[message.number] = identity or Identity(message.key_id)

    def forget_callers(self) -> None:
        """The frontend has new keys, and will introduce its callers again."""
        self._callers.clear()

    def caller(self, number: int) -> Identity:
        """Raises BrokenLinkError."""
        try:
            return self._callers[number]
        except KeyError:
            raise BrokenLinkError(f"caller {number} is not known") from None

    # Requests.

    def enter(self, entrance: JobEntrance, api: str = INFERENCE) -> Admission:
        """Raises NaiadError for a key that has reached a limit, and BrokenLinkError."""
        number = entrance.number
        known = self._admissions.get(number) if number else None
        if isinstance(known, NaiadError):
            raise known.copy()
        if known is not None:
            return known
        admission = self._guard.enter(
            self.caller(entrance.caller),
            EntranceFacts(
                api,
                entrance.head_model,
                entrance.address,
                entrance.counts_tokens,
                entrance.request_id,
            ),
        )
        if number:
            self._admissions[number] = admission
        if isinstance(admission, NaiadError):
            raise admission
        # OpenAI's routes reserve tokens before they look at the model, and the audit log shows it.
        if entrance.model_name and not entrance.counts_tokens:
            admission.note_model(entrance.model_name)
        if entrance.num_tokens and admission.needs_tokens:
            try:
                admission.reserve(entrance.num_tokens)
            except LimitError as error:
                admission.end(_TOO_MANY)
                if number:
                    self._admissions[number] = error
                raise
        if entrance.model_name:
            admission.note_model(entrance.model_name)
        return admission

    def on_enter(self, message: Enter) -> Entered | None:
        """A request that does not become a job. Returns the decision that its response waits for.
        Raises BrokenLinkError."""
        entrance = message.entrance
        try:
            admission = self.enter(entrance, message.api)
        except NaiadError as error:
            self._admissions.pop(entrance.number, None)
            fields = error.fields if isinstance(error, LimitError) else []
            return Entered(entrance.number, WorkError.of(error), fields)
        if message.status is None:
            return Entered(entrance.number, None, admission.rate_fields())
        self._admissions.pop(entrance.number, None)
        admission.end(message.status)
        return None

    def on_ended(self, message: Ended) -> None:
        admission = self._admissions.pop(message.number, None)
        if isinstance(admission, Admission):
            admission.settle(message.num_prompt_tokens, message.num_output_tokens)
            admission.end(message.status)

    def close(self) -> None:
        """The frontend is gone, and the clients of its requests with it."""
        admissions, self._admissions = self._admissions, {}
        for admission in admissions.values():
            if isinstance(admission, Admission):
                admission.end(CLIENT_GONE)

    # Refusals.

    def on_refusal_counted(self, message: RefusalCounted) -> None:
        """Raises BrokenLinkError."""
        accounts = self._guard.accounts
        account = accounts.of(self.caller(message.caller)) if message.caller else None
        accounts.count_refusal(account, Code[message.code])

    def on_refusal_audited(self, message: RefusalAudited) -> None:
        if self._guard.on_refused is not None:
            facts = EntranceFacts(
                message.api, message.model_name, message.address, request_id=message.request_id
            )
            self._guard.on_refused(message.key_id, facts, NaiadError(Code[message.code], ""))


def _identity(key_id: str, data: CallerData) -> Identity:
    return Identity(
        key_id,
        data.name,
        scopes=frozenset(data.scopes),
        models=data.models,
        limits=data.limits,
        priority=data.priority,
        metadata=data.metadata,
    )
