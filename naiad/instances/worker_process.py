"""One life of a worker process, from the fork to its end, as the server sees it.

It ends exactly once (`on_end`), whatever came first: the end of its channel, its pidfd, or a
message that it must not send.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from naiad import log
from naiad.core.work import LoadArguments
from naiad.errors import Code, NaiadError, internal
from naiad.instances.channel import Channel
from naiad.instances.template_process import TemplateProcess
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
from naiad.shm.arena import Arena

REAP_LIMIT_S = 2.0
STOPPED_LIMIT_S = 2.0
"""How long a worker that is to finalize may be stopped (SIGSTOP) before that is taken for good."""
_DECODER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


def describe_status(status: int | None) -> str:
    """A wait status in words."""
    if status is None:
        return "ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with status {os.WEXITSTATUS(status)}"


class WorkerProcess:
    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, arena: Arena) -> None:
        self._loop = loop
        self.name = name
        self.pid = 0
        self._pidfd: int | None = None
        self.on_message: Callable[[ToServer], None] = lambda message: None
        self.on_end: Callable[[], None] = lambda: None
        self._answer: asyncio.Future[ToServer] | None = None
        self.exited: asyncio.Future[int] = loop.create_future()
        """The wait status, from the process that reaps it; later than the end of the channel."""
        ours, self._theirs = socket.socketpair()
        self.channel: Channel[ToServer] = Channel(
            loop, ours, _DECODER, arena, self._take, self._on_close
        )

    @property
    def has_ended(self) -> bool:
        return self.channel.is_closed

    async def start(self, template: TemplateProcess) -> None:
        """Nothing is left of it when it raises, or is cancelled: a worker that finds its channel
        closed ends."""
        self._answer = self._loop.create_future()
        try:
            await template.fork(self.name, self._theirs, self._on_exit)
            await self._answer
        except BaseException:
            self._answer.cancel()
            self._close("it did not start")
            raise

    async def configure(self, arguments: LoadArguments) -> bytes:
        answer = await self._ask(Configure(arguments))
        assert isinstance(answer, Configured)
        return answer.config

    async def load(self, arguments: LoadArguments) -> Loaded:
        answer = await self._ask(Load(arguments))
        assert isinstance(answer, Loaded)
        return answer

    async def unload(self, timeout_s: float) -> None:
        """Lets the model finalize; kills it when that takes too long, or when it cannot because
        somebody has stopped it."""
        self.channel.send(Unload())
        first_s = min(timeout_s, STOPPED_LIMIT_S)
        if await self._exits_within(first_s):
            return
        if self._is_stopped():
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

    def _is_stopped(self) -> bool:
        """By SIGSTOP or a terminal; one that a debugger holds is not."""
        try:
            return (
                Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
            )
        except (OSError, IndexError):
            return False

    async def kill(self) -> None:
        """Returns when the process is gone and everything it held is free."""
        self._signal(signal.SIGKILL)
        if self.pid:
            await asyncio.shield(self.exited)
        self._close("killed")

    def kill_now(self) -> None:
        self._signal(signal.SIGKILL)

    async def _ask(self, message: Message) -> ToServer:
        if self.has_ended:
            raise internal(f"worker of '{self.name}' has ended")
        self._answer = self._loop.create_future()
        self.channel.send(message)
        return await self._answer

    def _take(self, message: ToServer) -> None:
        match message:
            case Started():
                self.pid = message.pid
                self._pidfd = self.channel.link.take_fd()
                self._loop.add_reader(self._pidfd, self._on_pidfd)
                self._settle(message)
            case Configured() | Loaded():
                self._settle(message)
            case Failed():
                log.error(f"worker of '{self.name}' failed: {message.details}")
                self._settle(NaiadError(Code[message.error.code], message.error.message))
            case _:
                self.on_message(message)

    def _settle(self, result: ToServer | NaiadError) -> None:
        if self._answer is None or self._answer.done():
            return
        if isinstance(result, NaiadError):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)

    def _on_pidfd(self) -> None:
        """Gone, while a child of the model's own may still hold the channel open: take what it had
        sent, then close."""
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
        # Closed for a reason other than its end (a bad message): then it must end now.
        self._signal(signal.SIGKILL)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._answer is not None and not self._answer.done():
            # How it ended is known when its parent has reaped it, a moment later.
            self.exited.add_done_callback(
                lambda done: self._settle(
                    internal(f"its worker process {describe_status(done.result())}")
                )
            )
            self._loop.call_later(
                REAP_LIMIT_S, self._settle, internal(f"its worker process ended ({reason})")
            )
        self.on_end()

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                pass
