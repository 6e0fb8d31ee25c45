"""A gRPC call of a frontend process, as its handler in the server process sees it.

In:  what the frontend reports about the call. Out: messages that make the frontend's own `Call`
     respond.
Rule: handlers cannot tell a forwarded call from one of this process. Everything about HTTP/2, and
      the call's deadline, is the frontend's.
"""

from __future__ import annotations

from asyncio import BaseTransport
from typing import Protocol

from naiad.core.memory_budget import MemoryAccount
from naiad.frontend_process.messages import (
    CallFinish,
    CallIdle,
    CallPause,
    CallReply,
    CallSend,
    OpenCall,
    content_of,
)
from naiad.ipc.messages import Message
from naiad.keys.account import Admission
from naiad.keys.guard import Entrance
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method, RequestHead
from naiad.transport.grpc.status import Fields, Status


class Frontend(Protocol):
    """The frontend that has the call."""

    def send_content(self, message: CallReply | CallSend) -> None:
        """Sends a message whose content may be large. Raises NaiadError without memory for it."""
        ...

    def send(self, message: Message) -> None: ...

    def on_call_ended(self, number: int) -> None: ...

    def note_progress(self, call: ForwardedCall) -> None:
        """The call may have become idle by the end of this turn."""
        ...


class ClientConnection:
    """The identity of a client's connection while it has forwarded calls, and what they hold."""

    def __init__(self, number: int, account: MemoryAccount) -> None:
        self.number = number
        self.account = account
        self.num_calls = 0


class ForwardedCall(Call):
    __slots__ = (
        "_client",
        "_congestion",
        "_frontend",
        "_peer",
        "_receive_start_ns",
        "number",
        "was_idle",
    )

    def __init__(
        self,
        frontend: Frontend,
        client: ClientConnection,
        method: Method,
        message: OpenCall,
        gate: Entrance | None = None,
        admission: Admission | None = None,
        peer: BaseTransport | None = None,
    ) -> None:
        """`gate`, `admission` and `peer` are None where nobody needs an API key."""
        # There is neither a protocol nor a stream here: every method that uses them is replaced.
        self._frontend = frontend
        self._client = client
        self._receive_start_ns = message.receive_start_ns
        self.number = message.call
        self.was_idle = True
        self._congestion: set[str] = set()
        self._peer = peer
        self.head = RequestHead(method, metadata=message.metadata, gate=gate)
        self.method = method
        self.admission = admission
        self.is_done = False
        self.held_bytes = 0
        self.deadline_ns = message.deadline_ns
        self.on_broken = None
        self.on_cancel = None
        self.on_flow = None
        self.on_stop = None
        self.reader = None
        self.refusal = None
        self._is_received = False
        self.handler = None
        if method.stream is not None:
            self.handler = method.stream(self)
            self.on_cancel = self.handler.on_cancel

    @property
    def receive_start_ns(self) -> int:
        return self._receive_start_ns

    @property
    def connection(self) -> object:
        return self._client

    @property
    def peer(self) -> BaseTransport | None:
        return self._peer

    @property
    def client(self) -> ClientConnection:
        return self._client

    @property
    def account(self) -> MemoryAccount:
        return self._client.account

    # From the frontend.

    def on_half_close(self) -> None:
        self._on_end()

    def set_congested(self, reason: str, is_congested: bool) -> None:
        """Holds the handler back while there is any reason to: the client does not keep up, or the
        frontend does not."""
        before = bool(self._congestion)
        if is_congested:
            self._congestion.add(reason)
        else:
            self._congestion.discard(reason)
        if before != bool(self._congestion) and not self.is_done and self.on_flow is not None:
            self.on_flow(not before)

    def report_idle(self) -> None:
        """Tells the frontend, which ends idle streams, whether this one is."""
        if not self.is_done and self.is_idle != self.was_idle:
            self.was_idle = self.is_idle
            self._frontend.send(CallIdle(self.number, self.was_idle))

    # From the handler.

    def pause_requests(self) -> None:
        self._frontend.send(CallPause(self.number, True))

    def resume_requests(self) -> None:
        if not self.is_done:
            self._frontend.send(CallPause(self.number, False))

    def reply(self, pieces: list[Buffer], num_bytes: int) -> None:
        if not self.is_done:
            fields = [] if self.admission is None else self.admission.trailer_fields()
            self._end(Status.OK)
            self._frontend.send_content(
                CallReply(self.number, content_of(b"".join(pieces)), fields)
            )

    def send(self, pieces: list[Buffer], num_bytes: int) -> None:
        if not self.is_done:
            self._frontend.send_content(CallSend(self.number, content_of(b"".join(pieces))))
            self._frontend.note_progress(self)

    def finish(self, status: int, message: str = "", fields: Fields = ()) -> None:
        if not self.is_done:
            self._end(status)
            self._frontend.send(CallFinish(self.number, status, message, list(fields)))

    def cancel(self) -> None:
        if self.is_done:
            return
        callback = self.on_cancel
        self._end(Status.CANCELLED)
        if callback is not None:
            callback()

    def abort(self, status: Status, message: str, fields: Fields = ()) -> None:
        if self.is_done:
            return
        callback = self.on_cancel
        self.finish(status, message, fields)
        if callback is not None:
            callback()

    def abort_provoked(self, status: Status, message: str, fields: Fields = ()) -> None:
        self.abort(status, message, fields)

    def _end(self, status: int) -> None:
        self.is_done = True
        if self.admission is not None and self.method.stream is None:
            self.admission.end(status)
        if status != Status.OK and self.on_broken is not None:
            self.on_broken()
        self.on_broken = self.on_cancel = self.on_flow = self.on_stop = None
        self.handler = None
        if self.held_bytes:
            self.account.release(self.held_bytes)
            self.held_bytes = 0
        self._frontend.on_call_ended(self.number)
