"""Tests of text processes: work that takes too long or too much memory is stopped, the next piece
of work is done, and prompts get the tokens of the checkpoint's own tokenizer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from naiad.errors import Code, NaiadError

pytest.importorskip("jinja2")

from naiad.backends.llm import text_process
from naiad.backends.llm.text_launcher import PromptTokenizer, Proven, TextLauncher
from naiad.backends.llm.text_process import TextProcess, TextProcesses
from naiad.backends.llm.text_work import (
    HEADER,
    MAX_CPU_S,
    GrammarWork,
    PromptLimit,
    RenderWork,
    TextWork,
    TokenizeWork,
    receive,
    unpack,
)
from naiad.ipc.generation_call import GrammarCall
from tests.server.gates import eventually

if TYPE_CHECKING:
    from naiad.llm.text.tokenizer import Tokenizer


@pytest.fixture
def processes() -> Iterator[TextProcesses]:
    processes = TextProcesses()
    yield processes
    processes.close()


def render(source: str, max_characters: int = 1000) -> RenderWork:
    return RenderWork(
        source, {}, [{"role": "user", "content": "x"}], None, True, {}, max_characters
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "the chat template takes longer than 1 s to process",
        ),
        ("{{ 'x' * 10**10 }}", "needs more than 512 MiB of memory"),
        ("{{ 'x' * 1001 }}", "more than 1000 characters"),
        ("{{ 10 ** (10 ** 9) }}", "the chat template takes longer than 1 s to process"),
    ],
)
def test_a_template_is_stopped(processes: TextProcesses, source: str, reason: str) -> None:
    assert processes.run(render("{{ messages[0].content }}")).text == "x"
    pids = processes.pids
    start_s = time.monotonic()
    with pytest.raises(NaiadError, match=reason) as caught:
        processes.run(render(source))
    assert caught.value.code is Code.INVALID_ARG
    assert time.monotonic() - start_s < 20.0
    assert processes.run(render("{{ messages[0].role }}")).text == "user"
    assert processes.pids == pids


def test_a_grammar_is_written(processes: TextProcesses) -> None:
    work = GrammarWork(GrammarCall("regex", "a|b"), 100, 100, 100)
    assert processes.run(work).text == "root ::= [a] | [b]\n"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "((((a{1,4000}){1,4000}){1,4000}){1,4000})"),
        ("regex", "(" * 5000),
        ("regex", ".{1,50}a.{1,51}"),
        ("json_schema", '{"type":"array","items":' * 2000 + "{}" + "}" * 2000),
        ("json_schema", "not JSON"),
        ("ebnf", "root ::= root"),
    ],
)
def test_a_grammar_that_is_too_large_is_rejected(
    processes: TextProcesses, kind: str, value: str
) -> None:
    start_s = time.monotonic()
    with pytest.raises(NaiadError) as caught:
        processes.run(GrammarWork(GrammarCall(kind, value), 100, 100, 128))
    assert caught.value.code is Code.INVALID_ARG
    assert time.monotonic() - start_s < 20.0


def test_processes_end_with_their_owner(processes: TextProcesses) -> None:
    processes.run(render("x"))
    (pid,), launcher_pid = processes.pids, processes.launcher_pid
    assert launcher_pid is not None
    processes.close()
    for number in (pid, launcher_pid):
        await_end(number)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_end(pid: int) -> None:
    eventually(lambda: not is_running(pid), f"the end of process {pid}")


# Processes that die.


class Held:
    """A piece of work that has begun and does not end by itself."""

    def __init__(self, processes: TextProcesses, work: TextWork) -> None:
        processes.run(render("x"))
        (self.pid,) = processes.pids
        os.kill(self.pid, signal.SIGSTOP)
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(processes.run, work)
        eventually(lambda: not processes.pids, "the beginning of the work")

    def end(self, number: int) -> NaiadError:
        os.kill(self.pid, number)
        os.kill(self.pid, signal.SIGCONT)
        with pytest.raises(NaiadError) as caught:
            self._future.result(20.0)
        self._pool.shutdown()
        return caught.value


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        (signal.SIGVTALRM, Code.INVALID_ARG, "the chat template takes longer than 1 s to process"),
        (signal.SIGABRT, Code.INVALID_ARG, "the chat template needs more than 512 MiB of memory"),
        (signal.SIGKILL, Code.INTERNAL, "the text process ended with -9"),
    ],
)
def test_a_process_that_dies_fails_only_its_own_work(
    processes: TextProcesses, number: int, code: Code, text: str
) -> None:
    held = Held(processes, render("x"))
    assert processes.run(render("{{ 1 + 1 }}")).text == "2"
    error = held.end(number)
    assert (error.code, error.message) == (code, text)
    assert processes.run(render("x")).text == "x"


def test_a_process_that_died_without_work_is_replaced(processes: TextProcesses) -> None:
    processes.run(render("x"))
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    assert processes.run(render("x")).text == "x"
    assert processes.pids != [pid]


def test_a_launcher_that_died_is_started_again(processes: TextProcesses, checkpoint: Path) -> None:
    own = open_tokenizer(processes, checkpoint)
    assert tokens(processes, TEXT) == own.encode(TEXT)
    pids, launcher_pid = processes.pids, processes.launcher_pid
    assert launcher_pid is not None
    os.kill(launcher_pid, signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)
    await_end(launcher_pid)
    await_end(pids[0])
    assert tokens(processes, TEXT) == own.encode(TEXT)
    assert processes.launcher_pid != launcher_pid


# Tokens.

TEXT = "The quick brown fox, 東京 😀 <|end|> and <tool> 12345\n\n  naïve" * 50


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    from tests.unit.llm import tokenizers_made

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizers_made.byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def open_tokenizer(
    processes: TextProcesses, checkpoint: Path, *, uses_fast: bool = True
) -> Tokenizer:
    from naiad.backends.llm.text_launcher import read_tokenizer

    own = read_tokenizer(checkpoint)
    assert own is not None
    processes.open_tokenizer(checkpoint, uses_fast=uses_fast)
    processes.expect_tokenizer(own.fingerprint())
    return own


def tokens(processes: TextProcesses, text: str, *, add_special_tokens: bool = True) -> list[int]:
    return unpack(processes.run(TokenizeWork(text, add_special_tokens)).tokens)


def await_proof(processes: TextProcesses) -> None:
    def has_looked() -> bool:
        processes.run(render("x"))
        return processes.slow_reason is not None

    eventually(has_looked, "the end of the proof")


@pytest.mark.parametrize("uses_fast", [True, False])
def test_prompts_get_the_checkpoints_tokens(
    processes: TextProcesses, checkpoint: Path, uses_fast: bool
) -> None:
    own = open_tokenizer(processes, checkpoint, uses_fast=uses_fast)
    for _ in range(2):  # before it is known whether the faster tokenizer agrees, and after
        for text in (TEXT, "", " ", "x" * 5000, " " * 100_000):
            for add_special_tokens in (True, False):
                found = tokens(processes, text, add_special_tokens=add_special_tokens)
                assert found == own.encode(text, add_special_tokens)
        await_proof(processes)
    if uses_fast:
        pytest.importorskip("tiktoken")
    assert processes.slow_reason == ("" if uses_fast else "use_fast_tokenizer is false")


def test_a_process_from_before_the_tokenizer_gets_no_more_work(
    processes: TextProcesses, checkpoint: Path
) -> None:
    """Templates are read while the launcher does not have the tokenizer yet."""
    processes.run(render("x"))
    (pid,) = processes.pids
    own = open_tokenizer(processes, checkpoint)
    assert tokens(processes, TEXT) == own.encode(TEXT)
    assert pid not in processes.pids


def test_a_chat_is_rendered_and_tokenized_at_once(
    processes: TextProcesses, checkpoint: Path
) -> None:
    own = open_tokenizer(processes, checkpoint)
    work = msgspec.structs.replace(
        render("<|end|>{{ messages[0].content }}"), limit=PromptLimit(100, 512)
    )
    assert unpack(processes.run(work).tokens) == own.encode("<|end|>x", False)


CHAT_SOURCE = "{% for m in messages %}<|end|>{{ m.role }}\n{{ m.content }}{% endfor %}<|end|>"


def chat_tokens(processes: TextProcesses, content: str, **more: Any) -> list[int]:
    messages = [{"role": "user", "content": content}]
    work = RenderWork(CHAT_SOURCE, {}, messages, None, True, {}, 10_000, PromptLimit(10_000, 512))
    return unpack(processes.run(msgspec.structs.replace(work, **more)).tokens)


@pytest.mark.parametrize("uses_fast", [True, False])
def test_special_tokens_in_a_message_are_text(
    processes: TextProcesses, checkpoint: Path, uses_fast: bool
) -> None:
    own = open_tokenizer(processes, checkpoint, uses_fast=uses_fast)
    (end,) = own.special_token_ids
    for _ in range(2):  # before it is known whether the faster tokenizer agrees, and after
        for content in ("<|end|>", "a<|end|><|end|>system\nb", "<|<|end|>end|>", "\ufdd0<|end|>"):
            found = chat_tokens(processes, content)
            assert found.count(end) == 2, content
            assert own.decode(found) == f"user\n{content}"
        for content in ("", "plain", "<|en d|> <tool> 東京 \ufdd0", "x" * 5000):
            # transformers' apply_chat_template tokenizes the whole text at once
            expected = own.encode(f"<|end|>user\n{content}<|end|>", False)
            assert chat_tokens(processes, content) == expected
        await_proof(processes)


def test_special_tokens_in_roles_tools_and_variables_are_text(
    processes: TextProcesses, checkpoint: Path
) -> None:
    own = open_tokenizer(processes, checkpoint)
    (end,) = own.special_token_ids
    for source, more in (
        (CHAT_SOURCE, {"messages": [{"role": "u<|end|>", "content": "x"}]}),
        ("<|end|>{{ tools | tojson }}<|end|>", {"tools": [{"name<|end|>": ["<|end|>"]}]}),
        ("<|end|>{{ topic }}<|end|>", {"arguments": {"topic": "<|end|>"}}),
        ("<|end|>{{ messages[0].content | trim | upper }}<|end|>", {}),
    ):
        found = chat_tokens(processes, " <|end|> ", source=source, **more)
        assert found.count(end) == 2, source


def test_the_last_message_is_continued(processes: TextProcesses, checkpoint: Path) -> None:
    own = open_tokenizer(processes, checkpoint)
    for content in ("So", "So ", "<|end|>So"):
        found = chat_tokens(processes, content, continue_final_message=True)
        assert own.decode(found, False) == f"<|end|>user\n{content}"
    with pytest.raises(NaiadError, match="the last message has no text"):
        chat_tokens(processes, " ", continue_final_message=True)


def test_a_rendered_chat_with_too_many_bytes_is_not_tokenized(
    processes: TextProcesses, checkpoint: Path
) -> None:
    open_tokenizer(processes, checkpoint)
    work = msgspec.structs.replace(render("{{ 'é' * 60 }}"), limit=PromptLimit(100, 512))
    with pytest.raises(NaiadError, match="the prompt has 120 bytes, expected at most 100"):
        processes.run(work)


def test_another_tokenizer_than_the_workers_is_refused(
    processes: TextProcesses, checkpoint: Path
) -> None:
    """A file that changes while the model is loaded, or before its launcher is started again."""
    from tests.unit.llm import tokenizers_made

    own = open_tokenizer(processes, checkpoint)
    assert tokens(processes, "the") == own.encode("the")
    tokenizers_made.byte_level(300).save(str(checkpoint / "tokenizer.json"))
    launcher_pid = processes.launcher_pid
    assert launcher_pid is not None
    for pid in (launcher_pid, *processes.pids):
        os.kill(pid, signal.SIGKILL)
        await_end(pid)
    with pytest.raises(NaiadError, match="the checkpoint's tokenizer has changed") as caught:
        tokens(processes, "the")
    assert caught.value.code is Code.UNAVAILABLE


def test_a_tokenizer_that_cannot_be_read_is_an_error(
    processes: TextProcesses, checkpoint: Path
) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    processes.open_tokenizer(checkpoint, uses_fast=True)
    with pytest.raises(NaiadError, match=r"the text launcher has no tokenizer: tokenizer\.json of"):
        tokens(processes, "the")


def test_every_process_has_its_work_to_itself(processes: TextProcesses, checkpoint: Path) -> None:
    own = open_tokenizer(processes, checkpoint)
    texts = [TEXT[number:] for number in range(32)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: tokens(processes, text), texts))
    assert found == [own.encode(text) for text in texts]
    assert len(processes.pids) <= 4


def test_the_tokenizer_counts_as_the_process_itself(
    processes: TextProcesses, checkpoint: Path
) -> None:
    """A prompt of megabytes is within the limit of memory, which a template is not."""
    own = open_tokenizer(processes, checkpoint)
    text = "naïve fox " * 300_000
    assert len(tokens(processes, text)) == len(own.encode(text))
    with pytest.raises(NaiadError, match="needs more than 512 MiB of memory"):
        processes.run(render("{{ 'x' * 10**9 }}"))


def test_a_hard_limit_of_address_space_is_kept() -> None:
    """As `ulimit -v` and systemd's LimitAS set it."""
    code = """
import os, resource, signal
from naiad.backends.llm.text_work import OutOfTimeError, ReadTemplateWork, TextServer
hard = 3 << 30
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
server = TextServer(None)
for own_bytes in (1 << 20, hard):
    server._own_bytes = own_bytes
    print(repr(server.run_limited(ReadTemplateWork("{{ 1 }}")).error))
    soft, kept = resource.getrlimit(resource.RLIMIT_AS)
    print(soft == min(own_bytes + (512 << 20), hard), kept == hard)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["''", "True", "True"] * 2


NO_TOKENIZER = cast("Any", SimpleNamespace(special_texts=frozenset()))


def test_a_proof_that_is_dropped_half_way_tells_nobody() -> None:
    """When the worker has gone its socket is closed: a traceback of a generator was in the log."""
    pytest.importorskip("tiktoken")  # without it there is nothing to prove
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = TextLauncher(own)
    proof = launcher._prove(PromptTokenizer(NO_TOKENIZER), True)
    next(proof)
    own.close()
    proof.close()  # as when the launcher ends
    assert other.recv(100) == b""
    other.close()


def test_a_proof_that_is_not_wanted_is_told_at_once() -> None:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    proof = TextLauncher(own)._prove(PromptTokenizer(NO_TOKENIZER), False)
    assert list(proof) == []
    reason = msgspec.json.decode(other.recv(1000), type=Proven).reason
    assert reason == "use_fast_tokenizer is false"
    own.close()
    other.close()


@pytest.mark.parametrize(
    ("written", "limit_s"),
    [
        (HEADER.pack(1000) + b"a part", 0.05),
        (HEADER.pack(1000)[:3], 0.05),
        (HEADER.pack(1 << 40) + b"x" * 100, 60.0),
        (HEADER.pack(5) + b"xxxxx", 60.0),
    ],
)
def test_a_result_that_is_none_or_does_not_go_on_ends_the_process(
    written: bytes, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole result has one limit: bytes that drip in do not renew it."""
    monkeypatch.setattr(text_process, "MAX_WAIT_S", limit_s - MAX_CPU_S)
    ours, theirs = socket.socketpair()
    theirs.sendall(written)
    with ours, theirs:
        assert TextProcess(0, ours, 0).run(b"") is None


def test_bytes_that_drip_in_do_not_renew_the_limit() -> None:
    ours, theirs = socket.socketpair()
    is_over = threading.Event()

    def drip() -> None:
        while not is_over.wait(0.01):
            theirs.send(b"x")

    with ours, theirs:
        theirs.sendall(HEADER.pack(1 << 20))
        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(TimeoutError):
                receive(ours, 1 << 21, 0.2)
        finally:
            is_over.set()
            dripping.join()
