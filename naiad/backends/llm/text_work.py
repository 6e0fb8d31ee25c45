"""The text process: renders chat templates and writes grammars for a worker, under limits of time
and memory. Runs as `python -m naiad.backends.llm.text_work`.

In:  length-prefixed JSON on the socket that is its standard input. Out: a TextResult for each.
Rules: this code runs in Python for as long as a client's template or schema makes it. Inside the
       worker it would hold the interpreter, and every step of the engine would wait; here it can be
       stopped. Work that computes for longer than MAX_CPU_S ends with an error; if it is stuck in
       one operation, the kernel ends the process at MAX_STUCK_CPU_S, and the worker starts another.
       The process ends when its socket is closed.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from naiad.errors import Code, NaiadError, invalid_arg
from naiad.ipc.generation_call import GrammarCall

MAX_CPU_S = 1.0
MAX_STUCK_CPU_S = 2.0
MAX_MEMORY_BYTES = 512 << 20
"""Maximum memory of one piece of work, in addition to the process itself."""
MAX_CACHED_TEMPLATES = 8
HEADER = struct.Struct("<Q")


class RenderWork(msgspec.Struct, frozen=True, tag="render"):
    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    arguments: dict[str, Any]
    max_characters: int


class ReadTemplateWork(msgspec.Struct, frozen=True, tag="read_template"):
    """Only checks that the template can be read."""

    source: str


class GrammarWork(msgspec.Struct, frozen=True, tag="grammar"):
    call: GrammarCall
    max_text: int
    max_places: int
    max_of_repeat: int


TextWork: TypeAlias = RenderWork | ReadTemplateWork | GrammarWork


class TextResult(msgspec.Struct, frozen=True):
    text: str = ""
    error: str = ""
    code: str = Code.INVALID_ARG.name


class _OutOfTime(BaseException):
    """Not an Exception, so that nothing which runs templates swallows it."""


def run(work: TextWork) -> str:
    """Raises NaiadError, and whatever a template raises."""
    match work:
        case RenderWork():
            template = _template(work.source, tuple(work.special_tokens.items()))
            text: str = template.render(
                work.messages,
                work.tools,
                work.add_generation_prompt,
                work.max_characters,
                **work.arguments,
            )
            return text
        case ReadTemplateWork():
            _template(work.source, ())
            return ""
        case GrammarWork():
            # Imported here because most models never see a grammar.
            from naiad.backends.llm.grammar_text import grammar_text

            try:
                return grammar_text(work.call, work.max_text, work.max_places, work.max_of_repeat)
            except ValueError as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise invalid_arg(
                    f"the {work.call.kind} of the request cannot be used: {lines[-1][:300]}"
                ) from None


@lru_cache(MAX_CACHED_TEMPLATES)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> Any:
    from naiad.llm.text.chat_template import ChatTemplate

    return ChatTemplate(source, dict(special_tokens))


def run_limited(work: TextWork) -> TextResult:
    kind = "grammar" if isinstance(work, GrammarWork) else "chat template"
    try:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_STUCK_CPU_S)
        try:
            return TextResult(run(work))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except NaiadError as error:
        return TextResult(error=error.message, code=error.code.name)
    except _OutOfTime:
        return TextResult(error=out_of_time(kind))
    except MemoryError:
        return TextResult(
            error=f"the {kind} needs more than {MAX_MEMORY_BYTES >> 20} MiB of memory"
        )
    except Exception as error:
        return TextResult(error=f"the {kind} fails: {type(error).__name__}: {str(error)[:300]}")


def out_of_time(kind: str) -> str:
    return f"the {kind} takes longer than {MAX_CPU_S:g} s to process"


def _on_out_of_time(number: int, frame: object) -> None:
    raise _OutOfTime


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    signal.signal(signal.SIGPROF, _on_out_of_time)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with open("/proc/self/statm") as file:
        own_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = own_bytes + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    decoder, encoder = msgspec.json.Decoder(TextWork), msgspec.json.Encoder()
    channel = socket.socket(fileno=0)
    while (data := receive(channel)) is not None:
        try:
            work = decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            result = TextResult(error=f"the request cannot be read: {error}")
        else:
            result = run_limited(work)
        send(channel, encoder.encode(result))


def send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(HEADER.pack(len(data)))
    channel.sendall(data)


def receive(channel: socket.socket) -> bytes | None:
    """Returns None if the other side has closed the socket."""
    header = _receive_exactly(channel, HEADER.size)
    if header is None:
        return None
    data = _receive_exactly(channel, HEADER.unpack(header)[0])
    return None if data is None else bytes(data)


def _receive_exactly(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, offset = memoryview(data), 0
    while offset < size:
        count = channel.recv_into(view[offset:])
        if not count:
            return None
        offset += count
    return data


if __name__ == "__main__":
    try:
        main()
    except ConnectionError:
        sys.exit(0)
