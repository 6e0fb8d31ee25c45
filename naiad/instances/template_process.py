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
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

import naiad
from naiad.errors import Code, NaiadError, internal
from naiad.instances.channel import Channel
from naiad.instances.orphans import MARK, Orphans
from naiad.instances.restart import RestartPolicy, Restarts
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
from naiad.ipc.work import Confinement, LoadArguments
from naiad.machine.waiting_threads import sleeping_threads
from naiad.shm.arena import Arena
from naiad.worker import bootstrap

ENDED_WITH_TEMPLATE = -1
"""Stands for the wait status of a worker whose template has died and taken it along."""
OnExit = Callable[[int], None]
"""Called with a wait status, or ENDED_WITH_TEMPLATE."""
REAP_POLL_S = 0.005
END_LIMIT_S = 6.0
"""A bit more than a template takes to end its workers."""


class Launch(msgspec.Struct, frozen=True):
    """How to start the interpreter of a template process."""

    command: list[str]
    """The backend, the descriptor of a socket and the server's process id are appended."""
    environment: Mapping[str, str]
    """The environment variables that models see."""


class WorkerSetup(msgspec.Struct, frozen=True):
    """What the operator decides for all workers."""

    environment: Mapping[str, str]
    """The environment variables that models see."""
    confinement: Confinement = Confinement()


def launch_interpreter(
    executable: str, environment: Mapping[str, str], missing: Mapping[str, str] | None = None
) -> Launch:
    """`missing`: packages that this interpreter lacks -> their folders. The server's `naiad` is
    used in any case. `-P` keeps Python from importing files of the current directory."""
    places = {"naiad": str(Path(naiad.__file__).parent.parent), "missing": missing or {}}
    command = [executable, "-P", bootstrap.__file__, msgspec.json.encode(places).decode()]
    return Launch(command, environment)


class TemplateEndedError(NaiadError):
    """The template died before it could fork the worker, or while it started."""


class TemplateBreaker:
    """When workers may start again after their template has died. A template that has served is
    replaced at once, and then after 0.2 s at most; one that dies while it starts, ever later."""

    def __init__(self) -> None:
        self._deaths = Restarts(RestartPolicy(max_restarts=1 << 30, max_delay_s=0.2))
        self._failed_starts = Restarts(RestartPolicy(first_delay_s=0.1, broken_delay_s=10.0))
        self._due_ns = 0

    def on_end(self, now_ns: int, *, has_started: bool) -> None:
        deaths = self._deaths if has_started else self._failed_starts
        self._due_ns = now_ns + int(deaths.next_delay_s(now_ns) * 1e9)

    def delay_s(self, now_ns: int) -> float:
        return max(self._due_ns - now_ns, 0) / 1e9


class TemplateProcess:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        backend: str,
        launch: Launch,
        confinement: Confinement,
        orphans: Orphans,
        breaker: TemplateBreaker,
    ) -> None:
        self._loop = loop
        self._breaker = breaker
        self._confinement = confinement
        self.backend = backend
        self._orphans = orphans
        self._pids: dict[int, int] = {}
        """The process ids of the workers that live, by number."""
        self._is_closing = False
        self._is_unfit = False
        """The backend cannot be imported, and the template has said so."""
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
                env={**sleeping_threads(launch.environment), MARK: str(os.getpid())},
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
        orphans.templates.add(self._process.pid)
        self._channel: Channel[FromTemplate] = Channel(
            loop,
            ours,
            msgspec.msgpack.Decoder(FromTemplate),
            Arena(),
            self._on_message,
            self._on_close,
            "template",
        )
        self._channel.pid = self._process.pid

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
                raise self._ended("has ended")
        except BaseException:
            sock.close()
            raise
        number = next(self._numbers)
        self._on_exit[number] = on_exit
        self._handed_over[number] = sock
        self._channel.send(Fork(number, title, self._confinement), [sock.fileno()])

    def _on_message(self, message: FromTemplate) -> None:
        match message:
            case TemplateReady():
                self._ready.set_result(None)
            case TemplateFailed():
                last = message.message.rstrip().rpartition("\n")[2]
                self._is_unfit = True
                reason = f"unable to load backend '{self.backend}': {last}"
                self._fail_start(NaiadError(Code.INTERNAL, reason, details=message.message))
            case Forked():
                self._handed_over.pop(message.worker).close()
                self._pids[message.worker] = message.pid
            case Exited():
                self._pids.pop(message.worker, None)
                self._on_exit.pop(message.worker)(message.status)
            case Imported():
                self._imported.set_result(message.problem)

    def _on_close(self, reason: str) -> None:
        """The kernel kills the workers of a dead template at the same moment. One that has sent
        what it must not still runs, and serves nobody any more."""
        if not self._is_closing:
            self._process.kill()
            if not self._is_unfit:
                has_started = self._ready.done() and self._ready.exception() is None
                self._breaker.on_end(time.monotonic_ns(), has_started=has_started)
        self._fail_start(self._ended("ended while starting"))
        if not self._imported.done():
            self._imported.set_result("the template process ended")
        for sock in self._handed_over.values():
            sock.close()
        self._handed_over.clear()
        on_exit, self._on_exit = self._on_exit, {}
        for callback in on_exit.values():
            callback(ENDED_WITH_TEMPLATE)
        if not self._is_closing:
            self._reap()

    def _reap(self) -> None:
        """The socket of a process that dies is closed a moment before one can wait for it."""
        if self._process.poll() is None:
            self._loop.call_later(REAP_POLL_S, self._reap)
        else:
            self._forget()

    def _forget(self) -> None:
        self._orphans.templates.discard(self._process.pid)
        pids, self._pids = self._pids, {}
        self._orphans.end_all(pids.values())

    def _fail_start(self, error: NaiadError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()

    def _ended(self, how: str) -> NaiadError:
        return TemplateEndedError(
            Code.INTERNAL, f"the template process of backend '{self.backend}' {how}"
        )

    def close(self) -> None:
        """Ends the template, which ends its workers. Blocks until that is done: a few milliseconds,
        unless a process is stuck in the kernel."""
        self._is_closing = True
        if self.is_alive:
            self._channel.close("closed")
        self._process.terminate()
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()


class Templates:
    """One template per backend, for the life of the server. A model with its own interpreter has
    its own `Templates`, for the life of the model."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        setup: WorkerSetup | None = None,
        launch: Launch | None = None,
        orphans: Orphans | None = None,
    ) -> None:
        """Without `setup`, models see the server's environment, and nothing limits them. `launch`
        is None for the server's own interpreter."""
        self._loop = loop
        self._setup = setup or WorkerSetup(os.environ)
        self._launch = launch or launch_interpreter(sys.executable, self._setup.environment)
        self._orphans = orphans or Orphans(loop)
        self._processes: dict[str, TemplateProcess] = {}
        self._breakers: defaultdict[str, TemplateBreaker] = defaultdict(TemplateBreaker)

    @property
    def may_import_ahead(self) -> bool:
        """False if workers run as another user: the template still is the server's user, and must
        not run code of the model."""
        return self._setup.confinement.user is None

    def on_interpreter(self, launch: Launch) -> Templates:
        """The templates of a model with its own interpreter."""
        return Templates(self._loop, self._setup, launch, self._orphans)

    def with_variables(self, variables: Mapping[str, str], launch: Launch | None) -> Templates:
        """The templates of a model with its own environment variables. `launch` is that of its own
        interpreter, if it has one. The loader of libraries and the imports of the backend see the
        variables, too, because they are those of the whole process."""
        start = launch or self._launch
        return self.on_interpreter(Launch(start.command, {**start.environment, **variables}))

    def get(self, backend: str) -> TemplateProcess:
        process = self._processes.get(backend)
        if process is None or not process.is_alive:
            process = self._processes[backend] = TemplateProcess(
                self._loop,
                backend,
                self._launch,
                self._setup.confinement,
                self._orphans,
                self._breakers[backend],
            )
        return process

    def restart_delay_s(self, backend: str) -> float:
        """How long workers that have ended with their template wait before they start again."""
        return self._breakers[backend].delay_s(time.monotonic_ns())

    async def fork(self, backend: str, title: str, sock: socket.socket, on_exit: OnExit) -> None:
        """Forks a worker as `TemplateProcess.fork` does."""
        await self.get(backend).fork(title, sock, on_exit)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._orphans.end_all_now()
