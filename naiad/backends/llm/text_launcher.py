"""The text launcher: a process next to the worker of a language model that reads the checkpoint's
tokenizer and forks text processes, which share its memory. Runs as
`python -m naiad.backends.llm.text_launcher`.

In:  a LauncherCall per packet, on the socket that is its standard input. Out: a LauncherReply for
     each; Proven without a call, when it is known whether the faster tokenizer agrees.
Rules: it has one thread and does no work of requests, so a request can end a text process, but not
       the launcher. It proves the faster tokenizer a few milliseconds at a time, while it has no
       calls. It ends when its socket is closed; text processes end when theirs are.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from naiad.backends.llm.text_work import TextServer, pack
from naiad.errors import NaiadError

if TYPE_CHECKING:
    from naiad.llm.text.fast_tokenizer import FastTokenizer
    from naiad.llm.text.tokenizer import Tokenizer

MAX_PACKET = 1 << 16
NICENESS = 5
"""The engine's threads come first where there are too few cores for all."""


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Starts a text process. The packet has its socket."""


class OpenTokenizer(msgspec.Struct, frozen=True, tag="open"):
    path: str
    """A checkpoint: a folder or a GGUF file."""
    uses_fast: bool


class End(msgspec.Struct, frozen=True, tag="end"):
    """Kills a text process, unless it has ended."""

    pid: int


LauncherCall: TypeAlias = Fork | OpenTokenizer | End


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    pid: int


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    fingerprint: str = ""
    error: str = ""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    status: int | None
    """As subprocess has it: minus the signal's number, or the exit code. None if another launcher
    has started the process."""


class Proven(msgspec.Struct, frozen=True, tag="proven"):
    reason: str = ""
    """Why the checkpoint's own tokenizer is used, empty if the faster one is."""


LauncherReply: TypeAlias = Forked | Opened | Ended | Proven


class PromptTokenizer:
    """`PackingTokenizer`: the checkpoint's own, or the faster one where it is proven."""

    def __init__(self, own: Tokenizer) -> None:
        self.own = own
        self.special_texts = own.special_texts
        self.fast: FastTokenizer | None = None

    def encode_packed(self, text: str, add_special_tokens: bool) -> bytes:
        if self.fast is not None:
            tokens = self.fast.encode(text, add_special_tokens)
            if tokens is not None:
                return tokens.tobytes()
        return pack(self.own.encode(text, add_special_tokens))


class TextLauncher:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._tokenizer: PromptTokenizer | None = None
        self._proof: Iterator[None] | None = None
        self._decoder = msgspec.json.Decoder(LauncherCall)

    def run(self) -> None:
        """Returns when the worker has closed its end."""
        while True:
            self._prove_while_idle()
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET, 1)
            if not data:
                return
            match self._decoder.decode(data):
                case Fork():
                    reply: LauncherReply = Forked(self._fork(descriptors[0]))
                case OpenTokenizer() as call:
                    reply = self._open(call)
                case End(pid):
                    reply = Ended(end_process(pid))
            self._send(reply)

    def _send(self, reply: LauncherReply) -> None:
        self._control.send(msgspec.json.encode(reply))

    def _fork(self, descriptor: int) -> int:
        gc.collect()
        gc.freeze()  # what a collection marks is no longer shared
        pid = os.fork()
        if pid:
            os.close(descriptor)
            return pid
        try:
            self._control.close()
            with contextlib.suppress(ConnectionError):
                TextServer(self._tokenizer).serve(socket.socket(fileno=descriptor))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _open(self, call: OpenTokenizer) -> Opened:
        try:
            tokenizer = read_tokenizer(Path(call.path))
        except NaiadError as error:
            return Opened(error=error.message)
        except Exception as error:
            return Opened(error=f"{type(error).__name__}: {error}")
        if tokenizer is None:
            return Opened()
        self._tokenizer = PromptTokenizer(tokenizer)
        self._proof = self._prove(self._tokenizer, call.uses_fast)
        return Opened(tokenizer.fingerprint())

    def _prove_while_idle(self) -> None:
        while self._proof is not None and not select.select([self._control], [], [], 0)[0]:
            next(self._proof, None)

    def _prove(self, tokenizer: PromptTokenizer, uses_fast: bool) -> Generator[None, None, None]:
        reason = "" if uses_fast else "use_fast_tokenizer is false"
        try:
            if uses_fast:
                # A package that the extras bring, but without which everything works.
                from naiad.llm.text.fast_tokenizer import FastTokenizer, describe, prove

                yield
                description = describe(tokenizer.own)
                yield
                fast = FastTokenizer(tokenizer.own, description)
                yield from prove(tokenizer.own, fast, description)
                tokenizer.fast = fast
        except Exception as error:
            reason = str(error) or type(error).__name__
        # Not in a `finally`: a proof that is dropped half-way, because the worker has gone or in a
        # text process, has nobody to tell.
        self._proof = None
        self._send(Proven(reason))


def read_tokenizer(path: Path) -> Tokenizer | None:
    """Reads it as the engines do. Raises NaiadError."""
    if path.is_file():
        from naiad.llm.checkpoint.gguf_file import GgufFile
        from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer

        return build_tokenizer(GgufFile(path).metadata)
    from naiad.llm.checkpoint.folder import open_folder, read_tokenizer

    return read_tokenizer(open_folder(path))


def end_process(pid: int) -> int | None:
    """Returns None if it is not a child of this process."""
    # It stays a zombie until here, so no other process can have this id.
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.nice(NICENESS)
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    TextLauncher(control).run()


if __name__ == "__main__":
    try:
        main()
    except ConnectionError:
        sys.exit(0)
