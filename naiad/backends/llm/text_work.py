"""What a text process does for a worker: it tokenizes prompts, renders chat templates and writes
grammars, under limits of time and memory. naiad.backends.llm.text_launcher forks these processes.

In:  length-prefixed JSON on a socket. Out: a TextResult for each, as MessagePack.
Rules: this code runs in Python for as long as a client's template or schema makes it. Inside the
       worker it would hold the interpreter, and every step of the engine would wait; here it can be
       stopped. Work that computes for longer than its limit ends with an error; if it is stuck in
       one operation, the kernel ends the process one second later, and the worker gets another.
       The process ends when its socket is closed.
"""

from __future__ import annotations

import array
import os
import resource
import signal
import socket
import struct
import time
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import msgspec

from naiad.errors import Code, NaiadError, internal, invalid_arg
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.text.content_guard import ContentGuard, split

MAX_CPU_S = 1.0
"""For a template or a grammar."""
TOKENIZING_S_PER_BYTE = 20e-6
"""Tokenizing gets so much more. Text takes 1 to 3 us per byte."""
STUCK_CPU_S = 1.0
MAX_MEMORY_BYTES = 512 << 20
"""Maximum memory of one piece of work, in addition to the process itself."""
TOKENIZING_MEMORY_PER_BYTE = 512
"""Tokenizing gets so much more. Text takes up to 128 times its bytes."""
MAX_CACHED_TEMPLATES = 8
HEADER = struct.Struct("<Q")


class PromptLimit(msgspec.Struct, frozen=True):
    max_bytes: int
    max_model_len: int

    def check(self, text: str) -> None:
        """Raises NaiadError."""
        # Characters are counted first, because that takes no time.
        is_longer = len(text) > self.max_bytes
        num_bytes = len(text) if is_longer else len(text.encode(errors="replace"))
        if num_bytes > self.max_bytes:
            raise invalid_arg(
                f"the prompt has {num_bytes} bytes, expected at most {self.max_bytes}: the model's "
                f"context is {self.max_model_len} tokens for prompt and output together"
            )


class RenderWork(msgspec.Struct, frozen=True, tag="render"):
    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    arguments: dict[str, Any]
    max_characters: int
    limit: PromptLimit | None = None
    """If it is set, the result has the tokens of the text, instead of the text."""
    continue_final_message: bool = False


class TokenizeWork(msgspec.Struct, frozen=True, tag="tokenize"):
    text: str
    add_special_tokens: bool


class ReadTemplateWork(msgspec.Struct, frozen=True, tag="read_template"):
    """Only checks that the template can be read."""

    source: str


class GrammarWork(msgspec.Struct, frozen=True, tag="grammar"):
    call: GrammarCall
    max_text: int
    max_places: int
    max_of_repeat: int


TextWork: TypeAlias = RenderWork | TokenizeWork | ReadTemplateWork | GrammarWork


class TextResult(msgspec.Struct, frozen=True):
    text: str = ""
    tokens: bytes = b""
    """Packed as int32."""
    error: str = ""
    code: str = Code.INVALID_ARG.name


class PackingTokenizer(Protocol):
    special_texts: frozenset[str]

    def encode_packed(self, text: str, add_special_tokens: bool) -> bytes: ...


class OutOfTimeError(BaseException):
    """Not an Exception, so that nothing which runs templates swallows it."""


def kind_of(work: TextWork) -> str:
    match work:
        case GrammarWork():
            return "grammar"
        case TokenizeWork():
            return "prompt"
        case _:
            return "chat template"


def out_of_time(work: TextWork) -> str:
    if isinstance(work, TokenizeWork):
        return "the prompt takes too long to tokenize"
    return f"the {kind_of(work)} takes longer than {MAX_CPU_S:g} s to process"


def out_of_memory(work: TextWork) -> str:
    if isinstance(work, TokenizeWork):
        return "the prompt takes too much memory to tokenize"
    return f"the {kind_of(work)} needs more than {MAX_MEMORY_BYTES >> 20} MiB of memory"


class TextServer:
    """Does the work of one text process."""

    def __init__(self, tokenizer: PackingTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._guard = ContentGuard(() if tokenizer is None else tokenizer.special_texts)
        self._own_bytes = 0

    def serve(self, channel: socket.socket) -> None:
        """Returns when the other side has closed the socket."""
        signal.signal(signal.SIGPROF, _on_out_of_time)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        with open("/proc/self/statm") as file:
            self._own_bytes = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        decoder, encoder = msgspec.json.Decoder(TextWork), msgspec.msgpack.Encoder()
        while (data := receive(channel)) is not None:
            try:
                work = decoder.decode(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                result = TextResult(error=f"the request cannot be read: {error}")
            else:
                result = self.run_limited(work)
            send(channel, encoder.encode(result))

    def run_limited(self, work: TextWork) -> TextResult:
        try:
            self._limit(0)
            try:
                return self._run(work)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except NaiadError as error:
            return TextResult(error=error.message, code=error.code.name)
        except OutOfTimeError:
            return TextResult(error=out_of_time(work))
        except MemoryError:
            return TextResult(error=out_of_memory(work))
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            return TextResult(error=f"the {kind_of(work)} fails: {reason}")

    def _limit(self, num_bytes: int) -> None:
        """Sets the limits for a template or a grammar, or for tokenizing so many bytes."""
        cpu_s = MAX_CPU_S + num_bytes * TOKENIZING_S_PER_BYTE
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s + STUCK_CPU_S)
        if self._own_bytes:
            most = self._own_bytes + MAX_MEMORY_BYTES + num_bytes * TOKENIZING_MEMORY_PER_BYTE
            # The hard limit stays: it is the operator's (`ulimit -v`, systemd's LimitAS).
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def _run(self, work: TextWork) -> TextResult:
        """Raises NaiadError, and whatever a template raises."""
        match work:
            case RenderWork():
                return self._render(work)
            case TokenizeWork():
                return self._tokenize(work.text, work.add_special_tokens)
            case ReadTemplateWork():
                _template(work.source, ())
                return TextResult()
            case GrammarWork():
                return TextResult(write_grammar(work))

    def _render(self, work: RenderWork) -> TextResult:
        template = _template(work.source, tuple(work.special_tokens.items()))
        values, mark = self._guard.marked(work.messages, work.tools, work.arguments)
        messages, tools, arguments = values
        text: str = template.render(
            messages, tools, work.add_generation_prompt, work.max_characters, **arguments
        )
        if work.continue_final_message:
            text = _cut_after_last_message(text, messages)
        if work.limit is None:
            return TextResult("".join(split(text, mark)))
        work.limit.check(text)
        parts = [self._tokenize(part, add_special_tokens=False) for part in split(text, mark)]
        return parts[0] if len(parts) == 1 else TextResult(tokens=b"".join(p.tokens for p in parts))

    def _tokenize(self, text: str, add_special_tokens: bool) -> TextResult:
        if self._tokenizer is None:
            raise internal("the text process has no tokenizer")
        self._limit(4 * len(text))
        return TextResult(tokens=self._tokenizer.encode_packed(text, add_special_tokens))


def _cut_after_last_message(text: str, messages: list[dict[str, Any]]) -> str:
    """The prompt up to the end of the last message's content. Raises NaiadError."""
    content = messages[-1].get("content") if messages else None
    wanted = content.strip() if isinstance(content, str) else ""
    at = text.rfind(wanted) if wanted else -1
    if at < 0:
        raise invalid_arg(
            "continue_final_message is true, but the last message has no text that the chat "
            "template writes"
        )
    # Blanks at the end belong to what is continued, where the template keeps them.
    end = at + len(wanted)
    kept = content[len(content.rstrip()) :] if isinstance(content, str) else ""
    return text[: end + len(kept)] if text.startswith(kept, end) else text[:end]


def pack(tokens: list[int]) -> bytes:
    return array.array("i", tokens).tobytes()


def unpack(tokens: bytes) -> list[int]:
    return array.array("i", tokens).tolist()


def write_grammar(work: GrammarWork) -> str:
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


def _on_out_of_time(number: int, frame: object) -> None:
    raise OutOfTimeError


def send(channel: socket.socket, data: bytes) -> None:
    channel.sendall(HEADER.pack(len(data)))
    channel.sendall(data)


def receive(
    channel: socket.socket, max_bytes: int | None = None, limit_s: float | None = None
) -> bytes | None:
    """Returns None if the other side has closed the socket. Raises TimeoutError if the whole
    message has not come within the limit, and ConnectionError if it is too long."""
    end_s = None if limit_s is None else time.monotonic() + limit_s
    header = _receive_exactly(channel, HEADER.size, end_s)
    if header is None:
        return None
    size = HEADER.unpack(header)[0]
    if max_bytes is not None and size > max_bytes:
        raise ConnectionError(f"message of {size} bytes")
    data = _receive_exactly(channel, size, end_s)
    return None if data is None else bytes(data)


def _receive_exactly(channel: socket.socket, size: int, end_s: float | None) -> bytearray | None:
    data = bytearray(size)
    view, offset = memoryview(data), 0
    while offset < size:
        if end_s is not None:
            channel.settimeout(max(end_s - time.monotonic(), 0.001))
        count = channel.recv_into(view[offset:])
        if not count:
            return None
        offset += count
    return data
