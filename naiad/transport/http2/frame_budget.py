"""The budget of a peer: every frame that costs work and brings no request forward is charged.

Each connection has two budgets. Time refills both. Frames that we send refill the budget for
control frames, because they provoke acknowledgements; streams that end normally refill the budget
for resets. An exhausted budget ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.transport.http2.frame import FRAME_NAMES
from naiad.transport.http2.limits import FloodMeter, Http2Limits, too_much
from naiad.transport.http2.sender import Http2Sender


class FrameBudget:
    __slots__ = ("_finished_seen", "_frames_seen", "_limits", "_resets", "_sender", "control")

    def __init__(
        self, limits: Http2Limits, sender: Http2Sender, clock_ns: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._sender = sender
        self._finished_seen = 0
        self._frames_seen = 0
        self.control = FloodMeter(limits.control_frame_burst, limits.control_frames_per_s, clock_ns)
        self._resets = FloodMeter(limits.reset_burst, limits.resets_per_s, clock_ns)

    def charge(self, kind: int, tokens: int = 1) -> None:
        """Charges a control frame, or a frame of `kind` that had no effect."""
        if not self.control.charge(tokens):
            self._refund()
            if not self.control.charge(0):
                name = FRAME_NAMES[kind] if kind < len(FRAME_NAMES) else "unknown"
                raise too_much(
                    f"{name.lower()}_flood", f"too many control frames, the last one {name}"
                )

    def charge_reset(self) -> None:
        """Charges a stream that the peer opened and then reset, or made us reset by a fault."""
        if not self._resets.charge():
            self._refund()
            if not self._resets.charge(0):
                raise too_much("rapid_reset", "too many streams were opened and reset")

    def charge_refused(self) -> None:
        """Charges a stream whose head alone is refused. It ends normally, and its end must not
        refill the budget."""
        self._sender.num_finished -= 1
        self.charge_reset()

    def _refund(self) -> None:
        sender = self._sender
        self.control.give(
            (sender.useful_frames - self._frames_seen) * self._limits.control_frames_per_data_frame
        )
        self._resets.give(sender.num_finished - self._finished_seen)
        self._frames_seen = sender.useful_frames
        self._finished_seen = sender.num_finished
