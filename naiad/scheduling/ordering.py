"""`preserve_ordering`: responses are delivered in the order in which the requests came, whichever
instance is faster."""

from __future__ import annotations

from collections import deque

from naiad.core.response import InferResponse, ResponseStream


class _Held:
    __slots__ = ("events", "outer")

    def __init__(self) -> None:
        self.outer = ResponseStream()
        self.events: list[tuple[InferResponse | None, bool]] = []


class Ordering:
    def __init__(self) -> None:
        self._waiting: deque[_Held] = deque()

    def add(self, inner: ResponseStream) -> ResponseStream:
        """Returns the stream that the caller gets instead of `inner`. Cancelling it cancels the
        work."""
        held = _Held()
        self._waiting.append(held)
        held.outer.on_cancel(inner.cancel)

        def on_response(response: InferResponse | None, is_final: bool) -> None:
            held.events.append((response, is_final))
            if self._waiting[0] is held:
                self._release()

        inner.deliver_to(on_response)
        return held.outer

    def _release(self) -> None:
        while self._waiting:
            held = self._waiting[0]
            events, held.events = held.events, []
            for response, is_final in events:
                if is_final:
                    self._waiting.popleft()
                held.outer.put(response, is_final)
            if self._waiting and self._waiting[0] is held:
                return
