"""The guard of a frontend and the entrances of the server process, joined without sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from naiad.errors import Code, NaiadError
from naiad.frontend_process.entrances import Entrances
from naiad.frontend_process.messages import (
    Caller,
    Ended,
    Enter,
    FromFrontend,
    JobEntrance,
    KeysCurrent,
    KeyState,
    RefusalAudited,
    RefusalCounted,
    content_of,
)
from naiad.frontend_process.options import KeyOptions
from naiad.frontend_process.remote_guard import RemoteAdmission, RemoteGuard
from naiad.ipc.messages import Message
from naiad.keys.account import Accounts, Admission, EntranceFacts, LimitError, MeteredAdmission
from naiad.keys.api_class import INFERENCE
from naiad.keys.guard import Entrance
from tests.fakes.keys import FakeTime, KeyRing

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromFrontend).decode


class Pair:
    """A frontend's guard and the server's, as messages join them."""

    def __init__(self, *, is_audited: bool = False) -> None:
        self.time = FakeTime()
        self.ring = KeyRing(self.time)
        self.ended: list[tuple[str, int, int]] = []
        self.refused: list[tuple[str, EntranceFacts, Code]] = []
        accounts = Accounts(
            self.time, self._on_end if is_audited else None, steady_s=self.time.steady_s
        )
        on_refused: Any = self._on_refused if is_audited else None
        self.server = self.ring.guard(accounts=accounts, on_refused=on_refused)
        self.entrances = Entrances(self.server)
        options = KeyOptions((), (), frozenset(), is_audited, None)
        self.frontend = RemoteGuard(options, cast(Any, self), self._flush)
        self.unsent: list[JobEntrance] = []
        """Jobs that the frontend has not sent yet."""
        self.frontend.guard.clock_s = self.time
        self.frontend._table._clock_s = self.time

    def _flush(self) -> None:
        unsent, self.unsent = self.unsent, []
        for entrance in unsent:
            self.entrances.enter(entrance)

    # The frontend's channel.

    @property
    def link(self) -> Pair:
        return self

    def resolve(self, _tensors: object) -> None:
        """Nothing is in shared memory."""

    def send(self, message: Message) -> None:
        match received := _decode(_encode(message)):
            case Caller():
                self.entrances.on_caller(received)
            case Enter():
                reply = self.entrances.on_enter(received)
                if reply is not None:
                    self.frontend.on_entered(reply)
            case Ended():
                self.entrances.on_ended(received)
            case RefusalCounted():
                self.entrances.on_refusal_counted(received)
            case RefusalAudited():
                self.entrances.on_refusal_audited(received)
            case KeysCurrent():
                self.entrances.forget_callers()
            case _:
                raise AssertionError(received)

    # The audit log.

    def _on_end(self, admission: MeteredAdmission, status: int) -> None:
        self.ended.append((admission.model_name, status, admission.num_output_tokens))

    def _on_refused(self, key_id: str, facts: EntranceFacts, error: NaiadError) -> None:
        self.refused.append((key_id, facts, error.code))

    # Tests.

    def publish(self) -> None:
        document = msgspec.json.encode(self.ring.document)
        self.frontend.update(KeyState(1, content_of(document), content_of(b"")))
        self.entrances.forget_callers()

    def gate(self, key: str) -> Entrance:
        gate = self.frontend.guard.gate(INFERENCE, {"x-api-key": key.encode()}.get)
        assert gate is not None
        return gate

    def enter(self, key: str) -> RemoteAdmission:
        admission = self.gate(key).enter()
        assert isinstance(admission, RemoteAdmission), admission
        return admission

    def job(self, admission: RemoteAdmission) -> Admission:
        return self.entrances.enter(admission.join(1))

    def num_requests(self) -> int:
        return sum(account.num_requests for account in self.server.accounts.all())


def decided(then: list[LimitError | None]) -> Callable[[LimitError | None], None]:
    return then.append


def test_a_job_is_counted_once_by_the_server() -> None:
    pair = Pair()
    key = pair.ring.create("one")
    pair.publish()
    admission = pair.enter(key)
    assert not admission.is_undecided
    assert pair.job(admission).identity.name == "one"
    admission.end(200)
    assert pair.num_requests() == 1


def test_a_request_that_becomes_no_job_is_counted_when_it_ends() -> None:
    pair = Pair()
    key = pair.ring.create("one")
    pair.publish()
    admission = pair.enter(key)
    assert pair.num_requests() == 0
    admission.end(400)
    admission.end(499)
    assert pair.num_requests() == 1


def test_a_limit_is_decided_by_the_server() -> None:
    pair = Pair()
    key = pair.ring.create("one", rpm_limit=2)
    pair.publish()
    for _ in range(2):
        admission = pair.enter(key)
        pair.job(admission).end(200)
        admission.end(200)
    with pytest.raises(LimitError, match="limit of 2 requests per minute"):
        pair.job(pair.enter(key))
    pair.time.advance(seconds=61)
    pair.job(pair.enter(key))


def test_a_response_without_a_job_waits_for_the_decision() -> None:
    pair = Pair()
    key = pair.ring.create("one", rpm_limit=1)
    pair.publish()
    first, second = pair.enter(key), pair.enter(key)
    assert first.is_undecided
    outcomes: list[LimitError | None] = []
    first.decide(decided(outcomes))
    assert outcomes == [None]
    assert not first.is_undecided
    assert b"x-ratelimit-remaining-requests: 0" in first.header_lines()
    first.end(400)
    second.decide(decided(outcomes))
    refusal = outcomes[1]
    assert isinstance(refusal, LimitError)
    assert refusal.retry_after_s == 60
    assert b"x-ratelimit-limit-requests: 1" in refusal.header_lines()
    assert pair.num_requests() == 1


def test_places_of_parallel_requests_are_given_back() -> None:
    pair = Pair()
    key = pair.ring.create("one", max_parallel_requests=1, tpm_limit=100)
    pair.publish()
    for _ in range(3):
        admission = pair.enter(key)
        admission.reserve(10)
        pair.job(admission)
        with pytest.raises(LimitError, match="1 requests at a time"):
            pair.job(pair.enter(key))
        admission.settle(2, 3)
        admission.end(200)
    account = pair.server.accounts.all()[0]
    assert (account.num_parallel, account.num_prompt_tokens, account.num_output_tokens) == (0, 6, 9)
    assert ("x-ratelimit-remaining-tokens", 85) in account.rate_fields()


def test_tokens_beyond_the_limit_refuse_every_job_of_the_request() -> None:
    pair = Pair()
    key = pair.ring.create("one", tpm_limit=10)
    pair.publish()
    admission = pair.enter(key)
    admission.reserve(11)
    for _ in range(2):
        with pytest.raises(NaiadError, match="10 tokens per minute; the request may need 11"):
            pair.job(admission)
    admission.end(429)
    assert pair.server.accounts.all()[0].num_parallel == 0


def test_the_end_of_a_frontend_ends_its_admissions() -> None:
    pair = Pair(is_audited=True)
    key = pair.ring.create("one", max_parallel_requests=1)
    pair.publish()
    pair.job(pair.enter(key))
    pair.entrances.close()
    assert pair.ended == [("", 499, 0)]
    pair.job(pair.enter(key))


def test_refusals_are_counted_and_audited_by_the_server() -> None:
    pair = Pair(is_audited=True)
    key = pair.ring.create("one", scopes=("metadata",))
    pair.publish()
    assert isinstance(pair.gate("wrong").enter(), NaiadError)
    assert isinstance(pair.gate(key).enter(), NaiadError)
    key_id = pair.ring.document.keys[0].id
    assert [(id, code) for id, _, code in pair.refused] == [
        ("", Code.UNAUTHENTICATED),
        (key_id, Code.PERMISSION_DENIED),
    ]
    assert pair.server.accounts.refusals == {Code.UNAUTHENTICATED: 1}
    assert pair.server.accounts.all()[0].refusals == {Code.PERMISSION_DENIED: 1}


def test_the_audit_log_has_the_status_that_the_frontend_reports() -> None:
    pair = Pair(is_audited=True)
    key = pair.ring.create("one")
    pair.publish()
    admission = pair.enter(key)
    admission.note_model("digits")
    pair.job(admission)
    admission.settle(1, 7)
    admission.end(503)
    pair.enter(key).end(400)
    assert pair.ended == [("digits", 503, 7), ("", 400, 0)]


def test_new_keys_take_effect_at_once() -> None:
    pair = Pair()
    key = pair.ring.create("one")
    pair.publish()
    gate = pair.gate(key)
    assert isinstance(gate.enter(), RemoteAdmission)
    held = pair.enter(key)
    pair.ring.revoke(key)
    pair.publish()
    refusal = gate.enter()
    assert isinstance(refusal, NaiadError)
    assert "was revoked" in refusal.message
    assert pair.job(held).identity.name == "one"  # it was let in before


def test_a_request_that_the_server_handles_is_not_counted_twice() -> None:
    pair = Pair()
    key = pair.ring.create("one", rpm_limit=1)
    pair.publish()
    admission = pair.enter(key)
    admission.discard()
    admission.end(200)
    assert pair.num_requests() == 0


def test_the_server_hears_of_a_job_before_it_hears_of_its_end() -> None:
    pair = Pair(is_audited=True)
    key = pair.ring.create("one", max_parallel_requests=1)
    pair.publish()
    admission = pair.enter(key)
    pair.unsent.append(admission.join(1))
    admission.end(1)  # the client is gone before the job has been sent
    assert pair.server.accounts.all()[0].num_parallel == 0
    assert [status for _, status, _ in pair.ended] == [1]


def test_limits_are_counted_in_the_order_of_the_requests() -> None:
    pair = Pair()
    key = pair.ring.create("one", rpm_limit=1)
    pair.publish()
    job, other = pair.enter(key), pair.enter(key)
    pair.unsent.append(job.join(1))
    outcomes: list[LimitError | None] = []
    other.decide(decided(outcomes))
    assert isinstance(outcomes[0], LimitError)
