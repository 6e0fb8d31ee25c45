"""The template process of a backend: imports it once, then forks a worker for every `Fork` message.

A fork of a warm interpreter costs milliseconds and shares its memory. Without it every model would
pay for the import again. A template of a single model first imports what the model imports
(`Import`), and says whether workers may be forked afterwards.
Rules: a template imports, never computes, and never starts a thread. It reaps its children and
       reports how they ended. It ends with the server (end of its socket, or the parent-death
       signal), and its workers end with it.
Every worker leads a process group of its own, and adopts the orphans among its descendants. When it
ends, its children become children of the template. A child of the template that is not a worker is
therefore what a dead worker has left behind, and the template kills it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import termios
import time
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
from naiad.ipc.work import Confinement, LoadArguments
from naiad.machine.process_tree import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
    kill_with_group,
)
from naiad.machine.telemetry import switch_off_telemetry
from naiad.shm.arena import Arena
from naiad.worker import worker
from naiad.worker.channel import ANCILLARY_BYTES, READ_BYTES, descriptors
from naiad.worker.confinement import confine
from naiad.worker.fork_safety import open_files, unsafe_to_fork
from naiad.worker.import_backend import import_backend

END_LIMIT_S = 5.0
"""How long a template that ends waits for the processes that it has killed."""
END_POLL_S = 0.002


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
    def __init__(self, sock: socket.socket, backend_name: str, server: int) -> None:
        """`server` is the process id of the server."""
        self._sock = sock
        self._backend_name = backend_name
        self._server = server
        self._link: Link[ToTemplate] = Link(msgspec.msgpack.Decoder(ToTemplate), Arena())
        self._children: dict[int, int] = {}
        """The process id of a worker -> the number by which the server knows it."""
        self._helpers: list[int] = []
        """Processes that the import of the backend has started."""
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Returns when the server has closed the socket or is gone."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # The parent-death signal only wakes the loop. A service manager may send SIGTERM to every
        # process; the server drains then, and needs its templates until it closes the socket.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._helpers = children()
        self._send(TemplateReady())
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        buffer = bytearray(READ_BYTES)
        while os.getppid() == self._server:
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
        # There are no workers yet, and an import that hangs must not hold up the end.
        handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            import_backend(self._backend_name).import_ahead(arguments)
            problem = unsafe_to_fork(before)
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        signal.signal(signal.SIGTERM, handler)
        self._helpers = children()
        _freeze()
        self._send(Imported(problem))

    def end_workers(self) -> None:
        """Kills the workers and everything that their models have started."""
        end_s = time.monotonic() + END_LIMIT_S
        while end_children() and time.monotonic() < end_s:
            time.sleep(END_POLL_S)

    def _fork(self, message: Fork) -> None:
        fd = self._link.pop_fd()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_worker(fd, parent, message.confinement)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(fd)
        self._children[pid] = message.worker
        self._send(Forked(message.worker, pid))

    def _become_worker(self, fd: int, parent: int, confinement: Confinement) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Signals that a model sends to its process group reach nobody but its own processes. The
        # session stays the server's: Linux divides the CPUs among sessions first (autogroups).
        os.setpgid(0, 0)
        confine(confinement)
        die_with_parent(parent)
        adopt_orphans()
        self._sock.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        worker.main(socket.socket(fileno=fd), self._backend_name)

    def _reap(self) -> None:
        """Reports the workers that have ended, and kills what they have left behind."""
        ended: list[Exited] = []
        while (pid := _ended_child()) is not None:
            if pid in self._children:
                kill_with_group(pid)
            _, status = os.waitpid(pid, 0)
            number = self._children.pop(pid, None)
            if number is not None:
                ended.append(Exited(number, status))
        # The death of each orphan brings another SIGCHLD, and so another look at its children.
        end_children(keep=[*self._children, *self._helpers])
        for message in ended:
            self._send(message)

    def _send(self, message: FromTemplate) -> None:
        out = bytearray()
        self._link.pack(message, out)
        self._sock.sendall(out)


def _ended_child() -> int | None:
    """A child that has ended and that nobody has waited for; it still owns its process id."""
    try:
        status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return status.si_pid if status is not None else None


def main() -> None:
    """The arguments are BACKEND SOCKET_FD SERVER_PID; naiad.worker.bootstrap calls it."""
    backend_name, fd, server = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # While the process imports, SIGTERM ends it at once. `run` ends its workers first.
    die_with_parent(server, signal.SIGTERM)
    adopt_orphans()
    # The server handles Ctrl-C: it drains, and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGHUP is for the server alone, too, although a service manager may send it to every process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_terminal()
    switch_off_telemetry(os.environ)
    sock = socket.socket(fileno=fd)
    template = Template(sock, backend_name, server)
    try:
        import_backend(backend_name)
    except BaseException:
        template._send(TemplateFailed(traceback.format_exc()))
        return
    _freeze()
    try:
        template.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server is gone
    except BaseException:
        traceback.print_exc()
    template.end_workers()
    os._exit(0)


def _freeze() -> None:
    """The garbage collector does not traverse frozen objects in the children, so their pages stay
    shared."""
    gc.collect()
    gc.freeze()
