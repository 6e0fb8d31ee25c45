"""The template process of a backend: imports it once, then forks a worker for every `Fork` message.

A fork of a warm interpreter costs milliseconds and shares its memory. Without it every model would
pay for the import again. A template of a single model first imports what the model imports
(`Import`), and says whether workers may be forked afterwards.
Rules: a template imports, never computes, and never starts a thread. It reaps its children and
       reports how they ended. It dies with the server (end of its socket, or the parent-death
       signal), and its workers die with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import termios
import traceback

import msgspec

from naiad.ipc.framing import Link
from naiad.ipc.messages import (
    Exited,
    Fork,
    Forked,
    FromTemplate,
    Import,
    Imported,
    TemplateFailed,
    TemplateReady,
    ToTemplate,
)
from naiad.ipc.work import LoadArguments
from naiad.shm.arena import Arena
from naiad.worker import worker
from naiad.worker.channel import ANCILLARY_BYTES, READ_BYTES, descriptors
from naiad.worker.fork_safety import open_files, unsafe_to_fork
from naiad.worker.import_backend import import_backend

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the parent thread that started it ends. `parent` is
    for a parent that has ended before."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def leave_terminal() -> None:
    """A terminal stops background groups that read from it (or, with `stty tostop`, write to it).
    One model that asks for a password would stop all workers at once. Without a terminal, reading
    fails and printing works."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return  # there is none
    try:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    finally:
        os.close(terminal)


class Template:
    def __init__(self, sock: socket.socket, backend_name: str) -> None:
        self._sock = sock
        self._backend_name = backend_name
        self._link: Link[ToTemplate] = Link(msgspec.msgpack.Decoder(ToTemplate), Arena())
        self._children: dict[int, int] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._send(TemplateReady())
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        buffer = bytearray(READ_BYTES)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake_read:
                    os.read(self._wake_read, 4096)
                    self._reap()
                    continue
                size, ancillary, _, _ = self._sock.recvmsg_into([buffer], ANCILLARY_BYTES)
                if size == 0:
                    return
                for message in self._link.feed(memoryview(buffer)[:size], descriptors(ancillary)):
                    match message:
                        case Fork():
                            self._fork(message)
                        case Import():
                            self._import(message.arguments)

    def _import(self, arguments: LoadArguments) -> None:
        before = open_files()
        try:
            import_backend(self._backend_name).import_ahead(arguments)
            problem = unsafe_to_fork(before)
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        _freeze()
        self._send(Imported(problem))

    def _fork(self, message: Fork) -> None:
        fd = self._link.pop_fd()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_worker(fd, parent)
            finally:
                os._exit(1)
        os.close(fd)
        self._children[pid] = message.worker
        self._send(Forked(message.worker, pid))

    def _become_worker(self, fd: int, parent: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(parent)
        self._sock.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        worker.main(socket.socket(fileno=fd), self._backend_name)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                self._send(Exited(child, status))

    def _send(self, message: FromTemplate) -> None:
        out = bytearray()
        self._link.pack(message, out)
        self._sock.sendall(out)


def main() -> None:
    """`python -m naiad.worker.template BACKEND SOCKET_FD SERVER_PID`"""
    backend_name, fd, server = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    die_with_parent(server)
    # The server handles Ctrl-C: it drains, and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGHUP is for the server alone, too, although a service manager may send it to every process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_terminal()
    sock = socket.socket(fileno=fd)
    template = Template(sock, backend_name)
    try:
        import_backend(backend_name)
    except BaseException:
        template._send(TemplateFailed(traceback.format_exc()))
        return
    _freeze()
    template.run()


def _freeze() -> None:
    """The garbage collector does not traverse frozen objects in the children, so their pages stay
    shared."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
