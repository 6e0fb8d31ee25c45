"""A language-model backend whose engine takes no time: every step makes one token for every open
request.

It stands in for the backend `llm` (bench/token_streams.py), and needs no framework. It sends what
the engine of Naiad sends: one message per step, and fewer events to clients that do not keep up.
"""

from __future__ import annotations

import threading
from collections import deque

from naiad.backends.backend import Backend, Runtime
from naiad.core.byte_strings import encode_byte_strings
from naiad.errors import cancelled
from naiad.ipc.generation_call import (
    CALL_PARAMETER,
    CompletionPiece,
    GenerationEvent,
    event_tensor,
    read_call,
)
from naiad.ipc.work import LoadArguments, WorkError, WorkRequest, WorkResponse, WorkTensor

TOKEN = " tok"
NUM_PROMPT_TOKENS = 8
_CANCELLED = WorkResponse(error=WorkError.of(cancelled("the request was cancelled")))


class _Open:
    """A request that still gets tokens."""

    __slots__ = ("handle", "has_events", "is_streamed", "num_left", "num_made", "num_unsent")

    def __init__(self, handle: int, num_tokens: int, *, is_streamed: bool, has_events: bool):
        self.handle = handle
        self.num_left = num_tokens
        self.num_made = 0
        self.num_unsent = 0
        self.is_streamed = is_streamed
        self.has_events = has_events

    def response(self) -> WorkResponse:
        """What has not been sent."""
        count, self.num_unsent = self.num_unsent, 0
        reason = None if self.num_left else "length"
        if self.has_events:
            piece = CompletionPiece(0, TOKEN * count, [7] * count, None, reason)
            event = GenerationEvent([piece], NUM_PROMPT_TOKENS, 0, self.num_made)
            return WorkResponse([event_tensor(event)])
        text = encode_byte_strings([TOKEN * count])
        return WorkResponse([WorkTensor("text_output", "BYTES", [1], text)])


class TokenBackend(Backend):
    is_async = True

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        self._runtime = runtime
        self._arrived = threading.Condition()
        self._intake: deque[_Open] = deque()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        with self._arrived:
            self._intake.extend(map(_read, requests))
            self._arrived.notify()
        return [None] * len(requests)

    def unload(self) -> None:
        with self._arrived:
            self._is_stopping = True
            self._arrived.notify()
        self._thread.join()

    def _run(self) -> None:
        requests: list[_Open] = []
        while not self._is_stopping:
            with self._arrived:
                if not requests:
                    self._arrived.wait_for(lambda: self._intake or self._is_stopping)
                requests += self._intake
                self._intake.clear()
            requests = self._step(requests)

    def _step(self, requests: list[_Open]) -> list[_Open]:
        runtime = self._runtime
        left: list[_Open] = []
        responses: list[tuple[int, WorkResponse | None, bool]] = []
        for request in requests:
            handle = request.handle
            if runtime.is_cancelled(handle):
                responses.append((handle, _CANCELLED, True))
                continue
            request.num_left -= 1
            request.num_made += 1
            request.num_unsent += 1
            is_final = not request.num_left
            if is_final or (request.is_streamed and not runtime.is_paused(handle)):
                responses.append((handle, request.response(), is_final))
            if not is_final:
                left.append(request)
        runtime.respond_many(responses)
        return left


def _read(request: WorkRequest) -> _Open:
    text = request.parameters.get(CALL_PARAMETER)
    if text is None:
        num_tokens = int(request.parameters.get("max_tokens", 128))
        return _Open(request.handle, num_tokens, is_streamed=True, has_events=False)
    call = read_call(str(text))
    return _Open(
        request.handle,
        call.parameters.max_tokens or 128,
        is_streamed=call.is_streamed,
        has_events=True,
    )
