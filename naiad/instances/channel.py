"""The server's end of a worker's channel, on the event loop. It never blocks and never trusts the
worker.

The transports of uvloop carry no descriptors, so this reads and writes the socket itself. Anything
that a worker must not send (bad bytes, bad references) closes the channel, which ends the worker.
So does a message that has begun and does not go on: what comes later, answers and signs of life
included, would be swallowed as its rest. A peer that is stopped, or that a debugger holds, is
waited for.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import socket
import termios
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from naiad.ipc.framing import BrokenLinkError, Decoder, Link
from naiad.ipc.messages import Message
from naiad.machine.process_tree import is_stopped
from naiad.shm.arena import Arena
from naiad.worker.channel import ANCILLARY_BYTES, READ_BYTES, Rights, descriptors, split_rights

M = TypeVar("M")
LOOK_S = 1.0
MAX_SILENT_LOOKS = 10
MIN_LOOK_BYTES = 100_000
"""A message that has begun is looked at every LOOK_S. It ends the channel if fewer bytes have come
each of MAX_SILENT_LOOKS times in a row."""
LATE_S = 0.5
"""A look that is so late says nothing: this process has not run either."""


class Channel(Generic[M]):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        decoder: Decoder[M],
        arena: Arena,
        on_message: Callable[[M], None],
        on_close: Callable[[str], None],
        peer: str = "worker",
        *,
        is_trusted: bool = False,
    ) -> None:
        """`peer` is what the log calls the other side. The messages of a trusted one have no
        deadline."""
        sock.setblocking(False)
        self._peer = peer
        self._loop = loop
        self._sock = sock
        self.link: Link[M] = Link(decoder, arena)
        self._on_message = on_message
        self._on_close = on_close
        self._out = bytearray()
        self._buffer = bytearray(READ_BYTES)  # its pages cost nothing until a message is that long
        self._waiting: deque[tuple[bytes, Rights]] = deque()
        self._num_unread = array.array("i", [0])
        self.unsent_bytes = 0
        """Bytes that the peer has not made room for."""
        self.is_closed = False
        self.pid = 0
        """The process at the other side, once it is known."""
        self._has_deadline = not is_trusted
        self._partial_bytes = 0
        """What has come of a message that is not complete."""
        self._new_bytes = 0
        """What has come of it since the last look."""
        self._num_silent = 0
        self._look: asyncio.TimerHandle | None = None
        loop.add_reader(sock, self._on_readable)

    def send(self, message: Message, more_fds: list[int] | None = None) -> None:
        """Large tensors must have been placed (`link.place`). Messages to a closed channel are
        dropped, because its requests have failed already."""
        if self.is_closed:
            return
        fds = self.link.pack(message, self._out)
        if more_fds:
            fds += more_fds
        if fds or self._waiting:
            self._queue(bytes(self._out), fds)
            return
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"write failed: {error.strerror}")
            return
        if sent < len(self._out):
            self._queue(bytes(self._out[sent:]), [])

    def _queue(self, data: bytes, fds: list[int]) -> None:
        """Descriptors that have to wait are duplicated, because their owner may close them
        meanwhile. Others are not, because there may be no descriptors left."""
        was_waiting = bool(self._waiting)
        groups = split_rights(fds)
        pieces = [(data[i : i + 1], rights) for i, rights in enumerate(groups)]
        pieces.append((data[len(groups) :], []))
        for piece, rights in pieces:
            rest = piece if self._waiting else self._send_piece(piece, rights)
            if self.is_closed:
                return
            if rest:
                try:
                    self._waiting.append(
                        (rest, [] if len(rest) < len(piece) else _duplicated(rights))
                    )
                except OSError as error:
                    self.close(f"write failed: {error.strerror}")
                    return
                self.unsent_bytes += len(rest)
        if self._waiting and not was_waiting:
            self._loop.add_writer(self._sock, self._on_writable)

    def _send_piece(self, data: bytes, rights: Rights) -> bytes:
        """Returns what could not be sent. The descriptors go with the first byte."""
        try:
            sent = self._sock.sendmsg([data], rights) if rights else self._sock.send(data)
        except BlockingIOError:
            return data
        except OSError as error:
            self.close(f"write failed: {error.strerror}")
            return b""
        return data[sent:]

    def _flush(self) -> bool:
        """Returns True when nothing waits any more."""
        while self._waiting:
            data, rights = self._waiting[0]
            rest = self._send_piece(data, rights)
            if self.is_closed:
                return True
            if len(rest) == len(data):
                return False
            self.unsent_bytes -= len(data) - len(rest)
            _close_all(rights)
            if rest:
                self._waiting[0] = (rest, [])
            else:
                self._waiting.popleft()
        return True

    def _on_writable(self) -> None:
        if self._flush() and not self.is_closed:
            self._loop.remove_writer(self._sock)

    def has_unread(self) -> bool:
        """True while the peer has not read everything that was sent."""
        if self.is_closed:
            return False
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, self._num_unread)
        return self._num_unread[0] > 0

    def drain(self) -> None:
        """Handles everything that has arrived, now."""
        while not self.is_closed and self._on_readable():
            pass

    def _on_readable(self) -> bool:
        """Returns False when there was nothing to read."""
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], ANCILLARY_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close(f"read failed: {error.strerror}")
            return False
        if size == 0:
            self.close(f"closed by the {self._peer}")
            return False
        try:
            for message in self.link.feed(
                memoryview(self._buffer)[:size],
                descriptors(ancillary) if ancillary else (),
                has_lost_fds=bool(flags & socket.MSG_CTRUNC),
            ):
                self._on_message(message)
                if self.is_closed:
                    break
        except BrokenLinkError as error:
            self.close(f"bad message: {error}")
        if (self.link.incoming or self._partial_bytes) and self._has_deadline:
            self._note_partial(size, len(self.link.incoming))
        return True

    def _note_partial(self, num_read: int, partial_bytes: int) -> None:
        is_same = partial_bytes == self._partial_bytes + num_read and self._partial_bytes > 0
        self._partial_bytes = partial_bytes
        self._new_bytes = self._new_bytes + num_read if is_same else partial_bytes
        if not is_same:
            self._num_silent = 0
        if partial_bytes and self._look is None and not self.is_closed:
            self._look_later()

    def _look_later(self) -> None:
        due_s = self._loop.time() + LOOK_S
        self._look = self._loop.call_at(due_s, self._on_look, due_s)

    def _on_look(self, due_s: float) -> None:
        self._look = None
        if self.is_closed or not self._partial_bytes:
            return
        if self._new_bytes >= MIN_LOOK_BYTES:
            self._num_silent = 0
        elif self._loop.time() - due_s < LATE_S and not (self.pid and is_stopped(self.pid)):
            self._num_silent += 1
        self._new_bytes = 0
        if self._num_silent >= MAX_SILENT_LOOKS:
            self.close(
                f"a message that the {self._peer} has begun does not go on: {self._partial_bytes} "
                f"bytes of it have come, and nearly nothing for {LOOK_S * MAX_SILENT_LOOKS:g} s"
            )
        else:
            self._look_later()

    def close(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        if self._look is not None:
            self._look.cancel()
        for _, rights in self._waiting:
            _close_all(rights)
        self._waiting.clear()
        self.unsent_bytes = 0
        self.link.close()
        on_close = self._on_close
        # The owner refers to the channel. Without these the memory of a dead worker's channel would
        # be kept until a full garbage collection.
        self._buffer = bytearray()
        self._on_message = self._on_close = _ignore
        on_close(reason)


def _ignore(message: object) -> None:
    """Stands in for the callbacks of a closed channel."""


def _duplicated(rights: Rights) -> Rights:
    return [
        (level, kind, array.array("i", [os.dup(fd) for fd in fds])) for level, kind, fds in rights
    ]


def _close_all(rights: Rights) -> None:
    for _, _, fds in rights:
        for fd in fds:
            os.close(fd)
