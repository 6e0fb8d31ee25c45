"""The launcher: a process that is forked from the server before its event loop and its threads
start, and forks a frontend process for every `ForkFrontend` message.

A server with threads cannot fork safely, and a new interpreter would need its own memory and a
third of a second; a fork of the launcher shares the server's memory and needs milliseconds.
Rules: the launcher never starts a thread. It reaps its children and reports how they ended. It ends
       with the server (end of its socket, or the parent-death signal), and its frontends end with
       it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
import traceback

import msgspec

from naiad.core.memory_trim import give_back_memory
from naiad.frontend_process.messages import ForkFrontend, KillFrontend, ToLauncher
from naiad.frontend_process.options import FrontendOptions
from naiad.frontend_process.process import run_frontend
from naiad.frontend_process.shared_budget import SharedBudget, SharedPage
from naiad.ipc.framing import Link
from naiad.ipc.messages import Exited, Forked, Message
from naiad.machine.process_tree import die_with_parent, end_children, is_reaped
from naiad.shm.arena import Arena
from naiad.worker.channel import ANCILLARY_BYTES, READ_BYTES, descriptors

YOUNG_OBJECTS = 10_000
"""New objects after which the garbage collector runs, in the server and in its frontends."""
END_LIMIT_S = 5.0
END_POLL_S = 0.002
CLOSE_LIMIT_S = END_LIMIT_S + 1.0
"""A bit more than the launcher needs to end its frontends."""


class LauncherProcess:
    """The launcher as the server sees it."""

    def __init__(
        self, pid: int, sock: socket.socket, page: SharedPage, options: FrontendOptions
    ) -> None:
        self.pid = pid
        self.sock = sock
        self.num_processes = options.num_processes
        self.budget = SharedBudget(options.memory_bytes, page, 0)
        """The server's part of the memory budget."""

    def close(self) -> None:
        """Ends the launcher, and with it the frontends. Blocks for a few milliseconds, unless the
        launcher is stopped or stuck."""
        self.sock.close()
        end_s = time.monotonic() + CLOSE_LIMIT_S
        while not is_reaped(self.pid):
            if time.monotonic() > end_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            time.sleep(END_POLL_S)


def start_launcher(options: FrontendOptions) -> LauncherProcess:
    """Forks the launcher. The calling process must not have started an event loop."""
    page = SharedPage(1 + options.num_processes)
    ours, theirs = socket.socketpair()
    server = os.getpid()
    gc.collect()
    give_back_memory()
    gc.freeze()  # pages that the collector does not touch stay shared
    # Requests leave no cycles behind, so most collections of young objects find nothing.
    gc.set_threshold(YOUNG_OBJECTS)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            # Ctrl-C and signals to the server's group are meant for the server alone.
            os.setpgid(0, 0)
            die_with_parent(server, signal.SIGKILL)
            Launcher(theirs, options, page).run()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server is gone
        except BaseException:
            traceback.print_exc()
        finally:
            _end_frontends()
            os._exit(0)
    theirs.close()
    return LauncherProcess(pid, ours, page, options)


def _end_frontends() -> None:
    end_s = time.monotonic() + END_LIMIT_S
    while end_children() and time.monotonic() < end_s:
        time.sleep(END_POLL_S)


class Launcher:
    def __init__(self, sock: socket.socket, options: FrontendOptions, page: SharedPage) -> None:
        self._sock = sock
        self._options = options
        self._page = page
        self._link: Link[ToLauncher] = Link(msgspec.msgpack.Decoder(ToLauncher), Arena())
        self._children: dict[int, int] = {}
        """The process id of a frontend -> its number."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Returns when the server has closed the socket."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        buffer = bytearray(READ_BYTES)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                    continue
                size, ancillary, _, _ = self._sock.recvmsg_into([buffer], ANCILLARY_BYTES)
                if size == 0:
                    return
                for message in self._link.feed(memoryview(buffer)[:size], descriptors(ancillary)):
                    match message:
                        case ForkFrontend():
                            self._fork(message)
                        case KillFrontend():
                            self._kill(message.number)
                        case _:
                            pass

    def _fork(self, message: ForkFrontend) -> None:
        sock = socket.socket(fileno=self._link.pop_fd())
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with_parent(launcher)
                self._sock.close()
                os.close(self._wake_read)
                os.close(self._wake_write)
                run_frontend(sock, self._options, message.methods, self._page, message.place)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        sock.close()
        self._children[pid] = message.number
        self._send(Forked(message.number, pid))

    def _kill(self, number: int) -> None:
        for pid, child in self._children.items():
            if child == number:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._children.pop(pid, None)
            if number is not None:
                self._send(Exited(number, status))

    def _send(self, message: Message) -> None:
        out = bytearray()
        self._link.pack(message, out)
        self._sock.sendall(out)
