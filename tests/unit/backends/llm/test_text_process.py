"""Tests of the text process: work that takes too long or too much memory is stopped, and the next
piece of work is done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from naiad.errors import Code, NaiadError

pytest.importorskip("jinja2")

from naiad.backends.llm.text_process import TextProcess
from naiad.backends.llm.text_work import GrammarWork, RenderWork
from naiad.ipc.generation_call import GrammarCall


@pytest.fixture
def process() -> Iterator[TextProcess]:
    process = TextProcess()
    yield process
    process.close()


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
def test_a_template_is_stopped(process: TextProcess, source: str, reason: str) -> None:
    assert process.run(render("{{ messages[0].content }}")) == "x"
    pid = process.pid
    start_s = time.monotonic()
    with pytest.raises(NaiadError, match=reason) as caught:
        process.run(render(source))
    assert caught.value.code is Code.INVALID_ARG
    assert time.monotonic() - start_s < 20.0
    assert process.run(render("{{ messages[0].role }}")) == "user"
    assert process.pid == pid


def test_a_grammar_is_written(process: TextProcess) -> None:
    work = GrammarWork(GrammarCall("regex", "a|b"), 100, 100, 100)
    assert process.run(work) == "root ::= [a] | [b]\n"


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
    process: TextProcess, kind: str, value: str
) -> None:
    start_s = time.monotonic()
    with pytest.raises(NaiadError) as caught:
        process.run(GrammarWork(GrammarCall(kind, value), 100, 100, 128))
    assert caught.value.code is Code.INVALID_ARG
    assert time.monotonic() - start_s < 20.0


def test_the_process_ends_with_its_owner(process: TextProcess) -> None:
    process.start()
    pid = process.pid
    assert pid is not None
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_work_that_the_kernel_had_to_end_is_the_requests_error(process: TextProcess) -> None:
    process.start()
    assert process.pid is not None
    assert process.run(render("x")) == "x"
    os.kill(process.pid, signal.SIGVTALRM)
    with pytest.raises(NaiadError, match="takes longer than 1 s") as caught:
        process.run(render("x"))
    assert caught.value.code is Code.INVALID_ARG
    assert process.run(render("x")) == "x"


def test_a_process_that_was_killed_is_started_again(process: TextProcess) -> None:
    process.start()
    assert process.pid is not None
    os.kill(process.pid, 9)
    with pytest.raises(NaiadError, match="the text process ended with -9"):
        process.run(render("x"))
    assert process.run(render("x")) == "x"
