"""Which signals stop the server, and which force it."""

from __future__ import annotations

import signal

import pytest

from naiad.server import StopSignals

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("signals", "stops"),
    [
        ([(TERM, 0.0)], [0.0]),
        # `timeout` signals its child and its process group.
        ([(TERM, 0.0), (TERM, 0.0)], [0.0]),
        ([(TERM, 0.0), (TERM, 0.3), (TERM, 0.9)], [0.0]),
        ([(INT, 0.0), (INT, 0.5), (INT, 2.0)], [0.0, 2.0]),
        # Repetitions do not extend the time.
        ([(TERM, 0.0), (TERM, 0.5), (TERM, 1.0), (TERM, 1.1)], [0.0, 1.1]),
        # Another signal is another request.
        ([(INT, 0.0), (TERM, 0.1)], [0.0, 0.1]),
    ],
)
def test_a_repeated_signal_is_one_stop(
    signals: list[tuple[signal.Signals, float]], stops: list[float]
) -> None:
    rule = StopSignals()
    assert [at_s for number, at_s in signals if rule.is_new(number, at_s)] == stops
