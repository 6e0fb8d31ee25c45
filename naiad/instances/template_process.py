"""A template process as the server sees it: it is started on first use, forks workers, and is
replaced when it has died.

In:  a socket for a new worker. Out: a forked worker at the other end, and later how it ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from naiad.core.waiting_threads import sleeping_threads
from naiad.errors import Code, NaiadError, internal
from naiad.instances.channel import Channel
from naiad.ipc.messages import (
    Exited,
    Fork,
    Forked,
    FromTemplate,
    Import,
    Imported,
    TemplateFailed,
    TemplateReady,
)
from naiad.ipc.work import LoadArguments
from naiad.shm.arena import Arena

OnExit = Callable[[int], None]


class Launch(msgspec.Struct, frozen=True):
    """How to start the interpreter of a template process."""

    command: list[str]
    """The backend, the descriptor of a socket and the server's process id are appended."""
    environment: dict[str, str] | None = None
    """None means the server's own."""


OWN_INTERPRETER = Launch([sys.executable, "-m", "naiad.worker.template"])


class TemplateProcess:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, backend: str, launch: Launch = OWN_INTERPRETER
    ) -> None:
        self._loop = loop
        self.backend = backend
        self._numbers = iter(range(1, 1 << 62))
        self._on_exit: dict[int, OnExit] = {}
        self._handed_over: dict[int, socket.socket] = {}
        self._ready: asyncio.Future[None] = loop.create_future()
        self._imported: asyncio.Future[str] = loop.create_future()
        ours, theirs = socket.socketpair()
        try:
            # The process gets its own group, because Ctrl-C and signals to the server's group are
            # meant for the server alone. It does not get its own session: Linux divides the CPUs
            # among sessions first (autogroups), and workers that get as much CPU as the server and
            # all of its clients on the same machine would get their requests one by one.
            self._process = subprocess.Popen(
                [*launch.command, backend, str(theirs.fileno()), str(os.getpid())],
                env=sleeping_threads(
                    os.environ if launch.environment is None else launch.environment
                ),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            ours.close()
            raise internal(
                f"failed to start the template process of backend '{backend}': {error.strerror}"
            ) from error
        finally:
            theirs.close()
        self._channel: Channel[FromTemplate] = Channel(
            loop,
            ours,
            msgspec.msgpack.Decoder(FromTemplate),
            Arena(),
            self._on_message,
            self._on_close,
        )

    @property
    def is_alive(self) -> bool:
        return not self._channel.is_closed

    async def import_ahead(self, arguments: LoadArguments) -> str:
        """Imports what this model imports, before the first fork. Returns why workers must not be
        forked afterwards; empty if they may. Raises NaiadError if the template does not start."""
        await asyncio.shield(self._ready)
        self._channel.send(Import(arguments))
        return await asyncio.shield(self._imported)

    async def fork(self, title: str, sock: socket.socket, on_exit: OnExit) -> None:
        """`sock` is the worker's end, which is closed here. `on_exit` is called once, with the wait
        status, at the latest when the template dies."""
        try:
            await asyncio.shield(self._ready)
            if not self.is_alive:
                raise internal(f"the template process of backend '{self.backend}' has ended")
        except BaseException:
            sock.close()
            raise
        number = next(self._numbers)
        self._on_exit[number] = on_exit
        self._handed_over[number] = sock
        self._channel.send(Fork(number, title), [sock.fileno()])

    def _on_message(self, message: FromTemplate) -> None:
        match message:
            case TemplateReady():
                self._ready.set_result(None)
            case TemplateFailed():
                last = message.message.rstrip().rpartition("\n")[2]
                self._fail_start(
                    f"unable to load backend '{self.backend}': {last}", message.message
                )
            case Forked():
                self._handed_over.pop(message.worker).close()
            case Exited():
                self._on_exit.pop(message.worker)(message.status)
            case Imported():
                self._imported.set_result(message.problem)

    def _on_close(self, reason: str) -> None:
        """The kernel kills the workers of the template at the same moment."""
        self._fail_start(f"the template process of backend '{self.backend}' ended while starting")
        if not self._imported.done():
            self._imported.set_result("the template process ended")
        for sock in self._handed_over.values():
            sock.close()
        self._handed_over.clear()
        on_exit, self._on_exit = self._on_exit, {}
        for callback in on_exit.values():
            callback(9)
        self._process.poll()

    def _fail_start(self, message: str, details: str = "") -> None:
        if not self._ready.done():
            self._ready.set_exception(NaiadError(Code.INTERNAL, message, details=details))
            self._ready.exception()

    def close(self) -> None:
        """The template ends when its socket is closed. The kill makes sure of that, and its workers
        die with it."""
        if self.is_alive:
            self._channel.close("closed")
        self._process.kill()
        self._process.wait()


class Templates:
    """One template per backend, for the life of the server. A model with its own interpreter has
    its own `Templates`, for the life of the model."""

    def __init__(self, loop: asyncio.AbstractEventLoop, launch: Launch = OWN_INTERPRETER) -> None:
        self._loop = loop
        self._launch = launch
        self._processes: dict[str, TemplateProcess] = {}

    def get(self, backend: str) -> TemplateProcess:
        process = self._processes.get(backend)
        if process is None or not process.is_alive:
            process = self._processes[backend] = TemplateProcess(self._loop, backend, self._launch)
        return process

    async def fork(self, backend: str, title: str, sock: socket.socket, on_exit: OnExit) -> None:
        """Forks a worker as `TemplateProcess.fork` does."""
        await self.get(backend).fork(title, sock, on_exit)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
