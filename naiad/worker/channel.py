"""The worker's end of its channel: one socket, read by whichever thread needs something from it.

There is no reader thread, because passing messages between threads would cost more than the work. A
thread that waits (the work loop for a batch, a model's thread for a BLS response) reads for all;
the others sleep on one condition. `send` may be called from any thread.
Invariant: at most one thread is inside `_read`; a message is dispatched exactly once, under the
           condition's lock.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from naiad.core.tensor import Tensor
from naiad.errors import NaiadError
from naiad.ipc.framing import MAX_WORKER_MESSAGE_BYTES, Link
from naiad.ipc.messages import (
    Borrow,
    CallEvent,
    Cancel,
    Execute,
    Flow,
    Lend,
    Message,
    Reply,
    ToWorker,
)
from naiad.ipc.work import WorkRequest
from naiad.shm.arena import INLINE_MAX_BYTES, SLOT_IDLE_NS, Arena
from naiad.worker.direct_calls import LentInstance

DirectRequest: TypeAlias = "tuple[LentInstance, WorkRequest | None]"
"""A direct request from another worker (naiad.instances.lease); None when no more will come."""
Work: TypeAlias = "ToWorker | DirectRequest"
Event: TypeAlias = Cancel | Flow | CallEvent | Reply | Borrow

READ_BYTES = 1 << 18
MAX_FDS_PER_CALL = 253
"""The limit of the kernel (SCM_MAX_FD)."""
ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS_PER_CALL * 4)


class EventListener(Protocol):
    def on_event(self, message: Event) -> None:
        """Called by whichever thread has read the message, under the channel's lock."""
        ...


class WorkerChannel:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.sock = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self.link: Link[ToWorker] = Link(msgspec.msgpack.Decoder(ToWorker), Arena())
        self.link.max_out_bytes = MAX_WORKER_MESSAGE_BYTES
        self.backlog: deque[Work] = deque()
        self._listener: EventListener | None = None
        self._lent: dict[int, LentInstance] = {}
        """The leases of this worker's instance, by the descriptor of the socket."""
        self.borrowed_fds: dict[int, int] = {}
        """Descriptors that came with `Borrow` messages not yet handled, keyed by lease."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_reading = False
        self._num_waiting = 0
        self._loop_thread: int | None = None
        self._inbox: select.epoll | None = None
        self._send_lock = threading.Lock()
        self._out = bytearray()
        self._buffer = bytearray(READ_BYTES)

    def attach(self, listener: EventListener) -> None:
        self._listener = listener

    # In.

    def next_work(self) -> Work:
        """Blocks until there is a message for the work loop."""
        if not self.backlog:
            self.wait_until(self._has_backlog)
        return self.backlog.popleft()

    def _has_backlog(self) -> bool:
        return bool(self.backlog)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Blocks until something that was received makes `is_done` true."""
        with self._lock:
            while not is_done():
                if self._is_reading and threading.get_ident() != self._loop_thread:
                    self._num_waiting += 1
                    self._changed.wait()
                    self._num_waiting -= 1
                else:
                    self._read_and_dispatch(0)

    def poll(self) -> None:
        """Reads what has already arrived, without waiting."""
        if self._loop_thread is not None and threading.get_ident() != self._loop_thread:
            return  # the thread of the event loop reads
        with self._lock:
            if not self._is_reading or self._loop_thread is not None:
                self._read_and_dispatch(socket.MSG_DONTWAIT)

    def reserve_for_loop(self) -> select.epoll:
        """From now on the event loop of this thread reads (by `poll`), whenever the returned epoll
        is readable."""
        self._loop_thread = threading.get_ident()
        self._is_reading = True
        self._inbox = select.epoll()
        self._inbox.register(self.sock, select.EPOLLIN)
        return self._inbox

    def hold(self, is_held: bool) -> None:
        """May be called from any thread. While the channel is held, messages do not wake the event
        loop."""
        if self._inbox is not None:
            self._inbox.modify(self.sock, 0 if is_held else select.EPOLLIN)

    def _read_and_dispatch(self, flags: int) -> None:
        """Called with the lock held. The lock is released while the system call may block."""
        was_reading, self._is_reading = self._is_reading, True
        self._lock.release()
        try:
            messages = self._read(flags)
        finally:
            self._lock.acquire()
            self._is_reading = was_reading
        for message in messages:
            if message.__class__ is not Execute and isinstance(
                message, (Cancel, Flow, CallEvent, Reply, Borrow)
            ):
                if self._listener is not None:
                    self._listener.on_event(message)
            else:
                self.backlog.append(message)
        if self._num_waiting:
            self._changed.notify_all()

    def _read(self, flags: int) -> list[Work]:
        if not flags:
            # Waiting in recvmsg would also wake the thread when the peer has read what we sent,
            # once per batch, for nothing.
            ready = self._readable.poll()
            if self._lent:
                direct: list[Work] = [self._read_lent(fd) for fd, _ in ready if fd in self._lent]
                return (
                    direct
                    if len(direct) == len(ready)
                    else direct + self._read_server(socket.MSG_DONTWAIT)
                )
        return self._read_server(flags)

    def _read_server(self, flags: int) -> list[Work]:
        try:
            size, ancillary, _, _ = self.sock.recvmsg_into([self._buffer], ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return []
        except ConnectionError:
            size, ancillary = 0, []
        if size == 0:
            # The server is gone, so nobody waits for what the model still does.
            os._exit(0)
        messages: list[Work] = []
        for message in self.link.feed(
            memoryview(self._buffer)[:size], descriptors(ancillary) if ancillary else ()
        ):
            if message.__class__ is Execute:  # nearly all messages
                messages.append(message)
                continue
            if isinstance(message, Lend):
                fd = self.link.pop_fd()
                self._lent[fd] = LentInstance(message.lease, fd)
                self._readable.register(fd, select.POLLIN)
                continue
            if isinstance(message, Borrow):
                self.borrowed_fds[message.lease] = self.link.pop_fd()
            messages.append(message)
        return messages

    # Lent to another worker.

    def _read_lent(self, fd: int) -> DirectRequest:
        lent = self._lent[fd]
        request = lent.read()
        if request is None:
            del self._lent[fd]
            self._readable.unregister(fd)
        return lent, request

    # Out.

    def send(self, message: Message, tensors: list[Tensor] | None = None) -> None:
        """`tensors` is the list inside the message; its large tensors are moved to shared memory
        first.

        Raises NaiadError, as the next two do, when there is no shared memory left or the message is
        too long; nothing has been sent then.
        """
        with self._send_lock:
            if tensors:
                self.link.place(tensors)
            self._send_placed(message, [tensors] if tensors else [])

    def send_many(self, message: Message, outputs: list[list[Tensor]]) -> None:
        with self._send_lock:
            self._place_all(outputs)
            self._send_placed(message, outputs)

    def send_last_use(
        self,
        message: Message,
        outputs: list[list[Tensor]],
        requests: list[Any],
        *,
        is_inline: bool,
    ) -> None:
        """Does what `send` does when the model is done with `requests`: the memory of an input may
        go back as an output, without a copy. `is_inline` is what `all_inline` says."""
        with self._send_lock:
            if is_inline:
                requests.clear()
                self._send(message)
                return
            self._place_all(outputs, requests)
            self._send_placed(message, outputs)

    def _send_placed(self, message: Message, outputs: list[list[Tensor]]) -> None:
        try:
            self._send(message)
        except NaiadError:
            for tensors in outputs:
                self.link.unplace(tensors)
            raise

    def _place_all(self, outputs: list[list[Tensor]], requests: list[Any] | None = None) -> None:
        """`requests` are those that end with these outputs."""
        try:
            for tensors in outputs:
                self.link.place(tensors)
            if requests is not None:
                requests.clear()
                for tensors in outputs:
                    self.link.copy_if_kept(tensors)
        except NaiadError:
            for tensors in outputs:
                self.link.unplace(tensors)
            raise

    def trim(self) -> None:
        """Frees shared memory of outputs that nothing has used for a while. The server unmaps it
        with the next message, and so does the system."""
        with self._send_lock:
            self.link.drop_slots(self.link.arena.trim(SLOT_IDLE_NS))

    def send_with_fds(self, message: Message, fds: list[int]) -> None:
        with self._send_lock:
            self._send(message, fds)

    def _send(self, message: Message, more_fds: list[int] | None = None) -> None:
        out = self._out
        out.clear()  # a failed encoding may have left something
        fds = self.link.pack(message, out) + (more_fds or [])
        if not fds:
            self.sock.sendall(out)
        else:
            sent = 0
            for rights in split_rights(fds):
                sent += self.sock.sendmsg([memoryview(out)[sent : sent + 1]], rights)
            self.sock.sendall(memoryview(out)[sent:])
        if len(out) > READ_BYTES:
            self._out = bytearray()


def all_inline(outputs: list[list[Tensor]]) -> bool:
    """No tensor needs shared memory."""
    for tensors in outputs:
        for tensor in tensors:
            if len(tensor.data) > INLINE_MAX_BYTES or tensor.data.__class__ is memoryview:
                return False
    return True


Rights: TypeAlias = "list[tuple[int, int, array.array[int]]]"


def split_rights(fds: list[int]) -> list[Rights]:
    """Ancillary data for successive sends of one byte each: descriptors may arrive before the
    message that names them, never after it."""
    groups = (fds[i : i + MAX_FDS_PER_CALL] for i in range(0, len(fds), MAX_FDS_PER_CALL))
    return [[(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", group))] for group in groups]


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            fds.extend(received)
    return fds
