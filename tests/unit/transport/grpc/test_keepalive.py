from __future__ import annotations

import pytest

from naiad.transport.grpc.keepalive import Due, Keepalive
from naiad.transport.grpc.options import GrpcOptions

S = 1_000_000_000
OPTIONS = GrpcOptions(
    keepalive_time_ms=10_000,
    keepalive_timeout_ms=3_000,
    min_recv_ping_interval_without_data_ms=5_000,
)


class TestOurPings:
    def test_a_silent_client_is_pinged_then_given_up(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        ticks = [
            keepalive.tick(S + i * S, has_received=False, has_calls=True, activity=0)
            for i in range(15)
        ]
        assert ticks == [Due.NOTHING] * 10 + [
            Due.PING,
            Due.NOTHING,
            Due.NOTHING,
            Due.CLOSE,
            Due.CLOSE,
        ]

    def test_anything_received_is_an_answer(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        assert keepalive.tick(11 * S, has_received=False, has_calls=True, activity=0) is Due.PING
        assert keepalive.tick(12 * S, has_received=True, has_calls=True, activity=0) is Due.NOTHING
        assert keepalive.tick(21 * S, has_received=False, has_calls=True, activity=0) is Due.NOTHING

    def test_without_calls_only_if_permitted(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        assert (
            keepalive.tick(100 * S, has_received=False, has_calls=False, activity=0) is Due.NOTHING
        )
        permitted = Keepalive(
            GrpcOptions(keepalive_time_ms=10_000, keepalive_permit_without_calls=True), S
        )
        assert permitted.tick(100 * S, has_received=False, has_calls=False, activity=0) is Due.PING

    @pytest.mark.parametrize(("limit", "pings"), [(2, 2), (0, 20)])
    def test_no_more_than_allowed_without_data(self, limit: int, pings: int) -> None:
        keepalive = Keepalive(
            GrpcOptions(keepalive_time_ms=10_000, max_pings_without_data=limit), S
        )
        seen = [
            keepalive.tick(S + i * 11 * S, has_received=i % 2 == 0, has_calls=True, activity=0)
            for i in range(40)
        ]
        assert seen.count(Due.PING) == pings

    def test_data_allows_more(self) -> None:
        keepalive = Keepalive(GrpcOptions(keepalive_time_ms=10_000, max_pings_without_data=2), S)
        seen = [
            keepalive.tick(S + i * 11 * S, has_received=i % 2 == 0, has_calls=True, activity=i)
            for i in range(40)
        ]
        assert seen.count(Due.PING) == 20


class TestTheirPings:
    def test_strikes(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        assert [keepalive.on_ping(S + i, has_calls=True, activity=0) for i in range(5)] == [
            False,
            False,
            False,
            True,
            True,
        ]

    def test_a_polite_client_never_strikes(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        assert not any(
            keepalive.on_ping(S + i * 5 * S, has_calls=True, activity=0) for i in range(50)
        )

    def test_data_forgives(self) -> None:
        """Clients that measure bandwidth ping after data, often."""
        keepalive = Keepalive(OPTIONS, S)
        assert not any(keepalive.on_ping(S + i, has_calls=True, activity=i) for i in range(50))

    def test_without_calls_two_hours(self) -> None:
        keepalive = Keepalive(OPTIONS, S)
        assert [
            keepalive.on_ping(S + i * 3600 * S, has_calls=False, activity=0) for i in range(5)
        ] == [False, False, False, True, True]
        permitted = Keepalive(
            GrpcOptions(
                keepalive_permit_without_calls=True, min_recv_ping_interval_without_data_ms=5_000
            ),
            S,
        )
        assert not any(
            permitted.on_ping(S + i * 6 * S, has_calls=False, activity=0) for i in range(9)
        )

    def test_no_strikes_at_all(self) -> None:
        keepalive = Keepalive(GrpcOptions(max_ping_strikes=0), S)
        assert not any(keepalive.on_ping(S, has_calls=True, activity=0) for _ in range(50))
