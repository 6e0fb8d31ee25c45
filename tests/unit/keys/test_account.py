"""Limits of keys, with a clock that the tests advance."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from naiad.core.identity import Identity, KeyLimits
from naiad.errors import NaiadError
from naiad.keys import account as account_module
from naiad.keys.account import Accounts, Admission, EntranceFacts, LimitError, LimitPart
from naiad.keys.api_class import INFERENCE
from naiad.keys.guard import Gate, read_text
from tests.fakes.keys import FakeTime, KeyRing


def gate(ring: KeyRing, **limits: Any) -> Gate:
    key = ring.create("limited", **limits)
    made = ring.guard().gate(INFERENCE, read_text({"x-api-key": key}))
    assert isinstance(made, Gate)
    return made


def admitted(gate: Gate) -> Admission:
    entered = gate.enter()
    assert not isinstance(entered, NaiadError), entered.message
    return entered


def refused(gate: Gate) -> LimitError:
    entered = gate.enter()
    assert isinstance(entered, LimitError)
    return entered


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing()


def test_requests_per_minute(ring: KeyRing) -> None:
    made = gate(ring, rpm_limit=3)
    for _ in range(3):
        admitted(made).end(200)
    error = refused(made)
    assert error.message.endswith("has reached its limit of 3 requests per minute")
    assert error.retry_after_s is not None
    assert dict(error.fields) == {
        "x-ratelimit-limit-requests": 3,
        "x-ratelimit-remaining-requests": 0,
        "x-ratelimit-reset-requests": 60,
    }
    ring.time.advance(seconds=error.retry_after_s - 1)
    refused(made)
    ring.time.advance(seconds=1)
    admitted(made)


def test_requests_in_flight(ring: KeyRing) -> None:
    made = gate(ring, max_parallel_requests=2)
    first, second = admitted(made), admitted(made)
    assert "2 requests at a time" in refused(made).message
    first.end(200)
    first.end(200)  # a second end changes nothing
    third = admitted(made)
    refused(made)
    second.end(499)
    third.end(500)
    admitted(made)


def test_tokens_are_reserved_and_settled(ring: KeyRing) -> None:
    made = gate(ring, tpm_limit=100)
    first = admitted(made)
    assert first.needs_tokens
    first.reserve(80)
    second = admitted(made)
    with pytest.raises(LimitError, match=r"100 tokens per minute; the request may need 30"):
        second.reserve(30)
    second.end(429)
    first.settle(10, 10)
    first.end(200)
    third = admitted(made)
    third.reserve(80)
    assert b"x-ratelimit-remaining-tokens: 0\r\n" in third.header_lines()


def test_a_request_that_uses_more_than_it_reserved_pays_for_it(ring: KeyRing) -> None:
    made = gate(ring, tpm_limit=100)
    first = admitted(made)
    first.reserve(10)
    first.settle(10, 85)
    first.end(200)
    with pytest.raises(LimitError):
        admitted(made).reserve(6)
    admitted(made).reserve(5)


def test_a_request_larger_than_the_limit_never_fits(ring: KeyRing) -> None:
    with pytest.raises(LimitError, match="may need 101: set max_tokens to less") as caught:
        admitted(gate(ring, tpm_limit=100)).reserve(101)
    assert caught.value.retry_after_s is None


def test_a_request_larger_than_the_day_never_fits(ring: KeyRing) -> None:
    with pytest.raises(LimitError, match="50 tokens per day; the request may need 51: ") as caught:
        admitted(gate(ring, tpm_limit=100, tokens_per_day=50)).reserve(51)
    assert caught.value.retry_after_s is None


def test_tokens_per_day_begin_again_at_midnight(ring: KeyRing) -> None:
    ring.time.advance(hours=23)
    made = gate(ring, tokens_per_day=100)
    first = admitted(made)
    first.reserve(90)
    first.settle(40, 60)
    first.end(200)
    error = refused(made)
    assert "100 tokens per day" in error.message
    assert error.retry_after_s == 3600
    ring.time.advance(hours=1)
    admitted(made).reserve(100)


@pytest.mark.parametrize("status", [0, 1, 200, 499])
def test_a_reservation_counts_where_nobody_reports_tokens(ring: KeyRing, status: int) -> None:
    """A model of Triton's protocol reports none, and a client may leave before the first one."""
    made = gate(ring, tpm_limit=100)
    first = admitted(made)
    first.reserve(60)
    first.end(status)
    with pytest.raises(LimitError):
        admitted(made).reserve(60)


@pytest.mark.parametrize("status", [3, 14, 400, 429, 503])
def test_a_request_that_fails_gives_its_reservation_back(ring: KeyRing, status: int) -> None:
    made = gate(ring, tpm_limit=100, tokens_per_day=100)
    first = admitted(made)
    first.reserve(60)
    first.end(status)
    admitted(made).reserve(100)


def test_changed_limits_hold_for_the_next_request(ring: KeyRing) -> None:
    key = ring.create("limited", rpm_limit=1)
    guard = ring.guard()
    made = guard.gate(INFERENCE, read_text({"x-api-key": key}))
    assert isinstance(made, Gate)
    admitted(made)
    refused(made)
    document = ring.document
    changed = tuple(_without_limit(one) for one in document.keys)
    ring._replace(type(document)(keys=changed))
    admitted(made)


def _without_limit(key: Any) -> Any:
    return msgspec.structs.replace(key, rpm_limit=None)


@pytest.mark.parametrize("limit", [60, 500])
def test_admitted_requests_are_within_two_percent_over_ten_minutes(limit: int) -> None:
    """64 clients at once, each of which tries again at random times."""
    ring, chance = KeyRing(FakeTime()), random.Random(7)
    made = gate(ring, rpm_limit=limit)
    count = 0
    for _ in range(600):
        for _ in range(64):
            if chance.random() < 0.9 and not isinstance(made.enter(), NaiadError):
                count += 1
        ring.time.advance(seconds=1)
    assert 0.98 * 10 * limit <= count <= 1.02 * 10 * limit


def test_reserved_tokens_are_within_two_percent_over_ten_minutes() -> None:
    ring, chance, limit = KeyRing(FakeTime()), random.Random(7), 10_000
    made = gate(ring, tpm_limit=limit)
    used, running = 0, list[tuple[int, Admission, int]]()
    for second in range(600):
        for end_s, admission, tokens in list(running):
            if end_s <= second:
                admission.settle(tokens // 2, tokens - tokens // 2)
                admission.end(200)
                used += tokens
                running.remove((end_s, admission, tokens))
        while len(running) < 64:
            admission = admitted(made)
            try:
                admission.reserve(200)
            except LimitError:
                admission.end(429)
                break
            running.append((second + chance.randint(1, 5), admission, chance.randint(20, 200)))
        ring.time.advance(seconds=1)
    assert 0.98 * 10 * limit <= used <= 1.02 * 10 * limit


def test_requests_in_flight_are_within_two_percent_over_ten_minutes() -> None:
    """64 clients at once, each of which tries again every second."""
    ring, chance, limit = KeyRing(FakeTime()), random.Random(7), 10
    made = gate(ring, max_parallel_requests=limit)
    running: list[tuple[int, Admission]] = []
    num_busy_seconds = 0
    for second in range(600):
        for end_s, admission in list(running):
            if end_s <= second:
                admission.end(200)
                running.remove((end_s, admission))
        for _ in range(64 - len(running)):
            entered = made.enter()
            if not isinstance(entered, NaiadError):
                running.append((second + chance.randint(1, 5), entered))
        assert len(running) <= limit
        num_busy_seconds += len(running)
        ring.time.advance(seconds=1)
    assert num_busy_seconds >= 0.98 * 600 * limit


def test_tokens_of_ten_days_are_within_two_percent() -> None:
    """64 clients at once, which use half of what they reserve and never stop trying."""
    ring, chance, limit = KeyRing(FakeTime()), random.Random(7), 50_000
    made = gate(ring, tokens_per_day=limit)
    used = [0] * 10
    running: list[tuple[int, int, Admission]] = []
    for minute in range(10 * 24 * 60):
        day = minute // (24 * 60)
        for end_m, tokens, admission in list(running):
            if end_m <= minute:
                admission.settle(tokens // 2, tokens - tokens // 2)
                admission.end(200)
                running.remove((end_m, tokens, admission))
        while len(running) < 64:
            entered = made.enter()
            if isinstance(entered, NaiadError):
                break
            try:
                entered.reserve(200)
            except LimitError:
                entered.end(429)
                break
            tokens = chance.randint(50, 150)
            used[day] += tokens
            running.append((minute + chance.randint(1, 5), tokens, entered))
        ring.time.advance(minutes=1)
    assert all(0.98 * limit <= tokens <= 1.02 * limit for tokens in used), used


@pytest.mark.parametrize("seconds", [-7200, -1, 1, 61, 7200, 86_400 * 400])
def test_setting_the_clock_begins_no_minute(ring: KeyRing, seconds: int) -> None:
    made = gate(ring, rpm_limit=1)
    admitted(made).end(200)
    ring.time.step(seconds=seconds)
    refused(made)
    ring.time.advance(seconds=59)
    assert refused(made).retry_after_s == 1
    ring.time.advance(seconds=1)
    admitted(made)


@pytest.mark.parametrize("seconds", [-7200, 7200, 86_400, 86_400 * 400])
def test_a_clock_that_was_wrong_for_a_while_forgets_no_tokens_of_the_day(
    ring: KeyRing, seconds: int
) -> None:
    ring.time.advance(hours=1)
    made = gate(ring, tokens_per_day=1000)
    first = admitted(made)
    first.reserve(600)
    first.settle(300, 300)
    first.end(200)
    ring.time.step(seconds=seconds)
    second = admitted(made)
    second.reserve(100)
    second.end(200)
    ring.time.step(seconds=-seconds)
    third = admitted(made)
    with pytest.raises(LimitError, match="1000 tokens per day"):
        third.reserve(500)
    third.reserve(200)
    third.end(200)
    ring.time.advance(days=2)
    admitted(made).reserve(1000)


def test_a_clock_that_is_set_back_over_midnight_forgets_nothing(ring: KeyRing) -> None:
    ring.time.advance(minutes=5)
    made = gate(ring, tokens_per_day=1000)
    first = admitted(made)
    first.reserve(600)
    first.end(200)
    ring.time.step(minutes=-10)  # yesterday
    with pytest.raises(LimitError):
        admitted(made).reserve(500)
    ring.time.advance(minutes=10)
    with pytest.raises(LimitError):
        admitted(made).reserve(500)


def test_accounts_outlive_changes_of_a_key(ring: KeyRing) -> None:
    accounts = Accounts(ring.time, steady_s=ring.time.steady_s)
    ring.create("one")
    (identity,) = ring.table.identities()
    account = accounts.of(identity)
    ring.create("two")
    again = next(one for one in ring.table.identities() if one.name == "one")
    assert accounts.of(again) is account


def test_idle_accounts_are_forgotten_when_there_are_many(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_module, "MAX_IDLE_ACCOUNTS", 3)
    accounts = Accounts(ring.time, steady_s=ring.time.steady_s)
    limits = KeyLimits(requests_per_minute=9)
    busy = accounts.of(Identity("busy", limits=limits))
    busy.admit(Identity("busy", limits=limits), EntranceFacts())
    for number in range(9):
        accounts.of(Identity(f"user-{number}"))
    assert accounts.of(Identity("busy", limits=limits)) is busy
    assert len(accounts.all()) <= 4


def test_parts_of_a_limit_add_up_to_it() -> None:
    limits = KeyLimits(10, 1001, 3, None)
    for count in (1, 2, 3):
        parts = [LimitPart(index, count).of(limits) for index in range(count)]
        assert sum(part.requests_per_minute or 0 for part in parts) == 10
        assert sum(part.tokens_per_minute or 0 for part in parts) == 1001
        assert sum(part.max_parallel or 0 for part in parts) == 3
        assert {part.tokens_per_day for part in parts} == {None}


def test_a_limit_that_cannot_be_divided_is_one_for_each() -> None:
    parts = [LimitPart(index, 3).of(KeyLimits(2, None, 1, 0)) for index in range(3)]
    assert [part.requests_per_minute for part in parts] == [1, 1, 1]
    assert [part.max_parallel for part in parts] == [1, 1, 1]
    assert [part.tokens_per_day for part in parts] == [0, 0, 0], "nothing stays nothing"


def test_a_part_follows_a_change_of_the_key() -> None:
    accounts = Accounts(lambda: 0.0, part=LimitPart(0, 2))
    before = Identity("k", limits=KeyLimits(10))
    account = accounts.of(before)
    assert account.limits.requests_per_minute == 5
    assert accounts.of(before) is account
    accounts.of(Identity("k", limits=KeyLimits(20)))
    assert account.limits.requests_per_minute == 10
