"""One life of a worker process, from the fork to its end, as the server sees it.

It ends exactly once (`WorkerListener.on_worker_end`), whichever comes first: the end of its
channel, the end that its pidfd reports, or a message that a worker must not send.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Protocol

import msgspec

from naiad import log
from naiad.errors import Code, NaiadError, internal
from naiad.instances.channel import Channel
from naiad.instances.printed_lines import PrintedLines
from naiad.instances.template_process import (
    ENDED_WITH_TEMPLATE,
    TemplateEndedError,
    Templates,
)
from naiad.ipc.framing import MAX_WORKER_MESSAGE_BYTES
from naiad.ipc.messages import (
    Configure,
    Configured,
    Failed,
    Load,
    Loaded,
    Message,
    Started,
    ToServer,
    Unload,
)
from naiad.ipc.work import LoadArguments
from naiad.machine.process_tree import is_stopped
from naiad.shm.arena import Arena

REAP_LIMIT_S = 2.0
STOPPED_LIMIT_S = 2.0
"""How long a worker that must finalize may be stopped (SIGSTOP) before it is killed."""
_DECODER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


def describe_status(status: int | None) -> str:
    """A wait status as text."""
    if status is None:
        return "ended"
    if status == ENDED_WITH_TEMPLATE:
        return "ended with its template process"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with status {os.WEXITSTATUS(status)}"


class WorkerListener(Protocol):
    def on_worker_message(self, message: ToServer) -> None:
        """A message that does not concern the start of the process. Raises BrokenLinkError."""
        ...

    def on_worker_end(self) -> None:
        """The process is gone."""
        ...


def unhealthy(instance_name: str) -> str:
    """Triton's text for an instance whose process has died. Tools look for it in the log."""
    return f"Stub process '{instance_name}' is not healthy."


class WorkerProcess:
    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, arena: Arena) -> None:
        self._loop = loop
        self.name = name
        self.pid = 0
        self._pidfd: int | None = None
        self._printed: PrintedLines | None = None
        self._ready_fd: int | None = None
        self._listener: WorkerListener | None = None
        self._reply: asyncio.Future[ToServer] | None = None
        """The reply to the request that is under way."""
        self.exited: asyncio.Future[int] = loop.create_future()
        """The wait status, from the process that reaps it; later than the end of the channel."""
        ours, self._theirs = socket.socketpair()
        self.channel: Channel[ToServer] = Channel(
            loop, ours, _DECODER, arena, self._on_message, self._on_close
        )
        self.channel.link.max_bytes = MAX_WORKER_MESSAGE_BYTES

    @property
    def has_ended(self) -> bool:
        return self.channel.is_closed

    @property
    def ended_with_template(self) -> bool:
        return self.exited.done() and self.exited.result() == ENDED_WITH_TEMPLATE

    def attach(self, listener: WorkerListener) -> None:
        """Replaces an earlier listener."""
        self._listener = listener

    async def start(self, templates: Templates, backend: str) -> None:
        """Nothing is left behind when this raises or is cancelled: a worker whose channel is closed
        ends."""
        self._reply = self._loop.create_future()
        try:
            await templates.fork(backend, self.name, self._theirs, self._on_exit)
            await self._reply
        except BaseException:
            self._reply.cancel()
            self._close("it did not start")
            raise

    async def configure(self, arguments: LoadArguments) -> bytes:
        reply = await self._ask(Configure(arguments))
        assert isinstance(reply, Configured)
        return reply.config

    async def load(self, arguments: LoadArguments) -> Loaded:
        reply = await self._ask(Load(arguments))
        assert isinstance(reply, Loaded)
        return reply

    def pop_ready_socket(self) -> socket.socket | None:
        """The socket for questions to the model's readiness hook, which the caller then owns; None
        if the model has no hook."""
        fd, self._ready_fd = self._ready_fd, None
        return None if fd is None else socket.socket(fileno=fd)

    async def unload(self, timeout_s: float) -> None:
        """Lets the model finalize. Kills the process when that takes too long, or when somebody has
        stopped the process."""
        self.channel.send(Unload())
        first_s = min(timeout_s, STOPPED_LIMIT_S)
        if await self._exits_within(first_s):
            return
        if is_stopped(self.pid, counts_traced=False):
            log.warning(f"worker of '{self.name}' is stopped and cannot finalize: it is killed")
        elif await self._exits_within(timeout_s - first_s):
            return
        else:
            log.warning(
                f"worker of '{self.name}' did not finalize within {timeout_s:g} s and is killed"
            )
        await self.kill()

    async def _exits_within(self, limit_s: float) -> bool:
        await asyncio.wait([self.exited], timeout=max(limit_s, 0.0))
        return self.exited.done()

    async def kill(self) -> None:
        """Returns when the process is gone and everything that it held is free."""
        self._signal(signal.SIGKILL)
        if self.pid:
            await asyncio.shield(self.exited)
        self._close("killed")

    def kill_now(self) -> None:
        self._signal(signal.SIGKILL)

    async def _ask(self, message: Message) -> ToServer:
        if self.has_ended:
            raise internal(f"worker of '{self.name}' has ended")
        self._reply = self._loop.create_future()
        self.channel.send(message)
        return await self._reply

    def _on_message(self, message: ToServer) -> None:
        match message:
            case Started():
                self.pid = self.channel.pid = message.pid
                self._pidfd = self.channel.link.pop_fd()
                self._loop.add_reader(self._pidfd, self._on_pidfd)
                self._printed = PrintedLines(
                    self._loop, self.channel.link.pop_fd(), self.name, self.pid
                )
                self._finish_reply(message)
            case Loaded():
                if message.has_ready_hook:
                    self._ready_fd = self.channel.link.pop_fd()
                self._finish_reply(message)
            case Configured():
                self._finish_reply(message)
            case Failed():
                error = message.error
                self._finish_reply(
                    NaiadError(Code[error.code], error.message, details=message.details)
                )
            case _:
                if self._listener is not None:
                    self._listener.on_worker_message(message)

    def _finish_reply(self, result: ToServer | NaiadError) -> None:
        if self._reply is None or self._reply.done():
            return
        if isinstance(result, NaiadError):
            self._reply.set_exception(result)
        else:
            self._reply.set_result(result)

    def _on_pidfd(self) -> None:
        """The process is gone, but a child that the model started may still hold the channel open:
        what the worker had sent is read, then the channel is closed."""
        self.channel.drain()
        self._close("the process is gone")

    def _on_exit(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status)
        if not self.has_ended:
            self.channel.drain()
            self._close("the process is gone")

    def _close(self, reason: str) -> None:
        if not self.channel.is_closed:
            self.channel.close(reason)

    def _on_close(self, reason: str) -> None:
        # After a bad message the process still runs: it must end now.
        self._signal(signal.SIGKILL)
        self._theirs.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None
        unused = self.pop_ready_socket()
        if unused is not None:
            unused.close()
        if self._reply is not None and not self._reply.done():
            # How the process ended is known when its parent has reaped it, a moment later.
            self.exited.add_done_callback(
                lambda done: self._finish_reply(self._lost(done.result()))
            )
            self._loop.call_later(REAP_LIMIT_S, self._finish_reply, self._lost(None, reason))
        if self._listener is not None:
            self._listener.on_worker_end()

    def _lost(self, status: int | None, reason: str = "") -> NaiadError:
        end = f"{describe_status(status)} ({reason})" if reason else describe_status(status)
        message = f"{unhealthy(self.name)} Its worker process {end}"
        if status == ENDED_WITH_TEMPLATE:
            return TemplateEndedError(Code.INTERNAL, message)
        return internal(message)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                pass
