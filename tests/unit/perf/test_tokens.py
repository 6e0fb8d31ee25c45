"""Tests prompts and token figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.perf.data.openai_payload import extra_fields, make_digest, payload
from naiad.perf.data.prompts import Lengths, Prompt, read_prompts, read_trace, synthetic
from naiad.perf.data.token_counter import WordCounter, token_counter
from naiad.perf.data.triton_llm import make_generate_digest, prompt_dataset
from naiad.perf.load.load import ResponseFailureError
from naiad.perf.measure.recorder import Detail
from naiad.perf.measure.token_metrics import (
    TokenChunk,
    TokenCounting,
    is_good,
    request_tokens,
    summarize_requests,
)
from naiad.settings.option import OptionError

MS = 1_000_000
WORDS = WordCounter()


def detail(times_ms: list[float], chunks: list[TokenChunk]) -> Detail:
    return Detail(0, -1, 0, [round(time * MS) for time in times_ms], list(chunks))


def test_figures_of_one_request() -> None:
    chunks = [TokenChunk(0), TokenChunk(1), TokenChunk(1), TokenChunk(1), TokenChunk(0, 12, 4)]
    tokens = request_tokens(detail([1, 10, 20, 40, 41], chunks), 41 * MS, TokenCounting())
    assert tokens is not None
    assert tokens.ttft_ms == 10, "the chunk with the role only is no token"
    assert tokens.second_ms == 10
    assert tokens.itl_ms == 10, "(40 - 10) / (4 tokens - 1)"
    assert tokens.gaps_ms == [10, 20]
    assert (tokens.num_input, tokens.num_output, tokens.counted_by) == (12, 4, "usage")


def test_sources_of_the_token_count() -> None:
    chunks = [TokenChunk(1, text="a b "), TokenChunk(1, text="c")]
    by_chunks = request_tokens(detail([1, 2], chunks), 2 * MS, TokenCounting([7]))
    by_tokenizer = request_tokens(detail([1, 2], chunks), 2 * MS, TokenCounting([7], WORDS.count))
    assert by_chunks is not None
    assert by_tokenizer is not None
    assert (by_chunks.num_output, by_chunks.counted_by, by_chunks.num_input) == (2, "chunks", 7)
    assert (by_tokenizer.num_output, by_tokenizer.counted_by) == (3, "tokenizer")
    assert request_tokens(detail([1], [TokenChunk(0)]), MS, TokenCounting()) is None


def test_summary_and_goodput() -> None:
    chunks = [TokenChunk(1), TokenChunk(1, 5, 2)]
    known = []
    for ttft in (10.0, 20.0, 90.0):
        end_ns = round((ttft + 10) * MS)
        tokens = request_tokens(detail([ttft, ttft + 10], chunks), end_ns, TokenCounting())
        assert tokens is not None
        known.append(tokens)
    summary = summarize_requests(known, 2.0, {"time_to_first_token": 50})
    assert summary.output_tokens_per_s == 3.0
    assert summary.input_tokens_per_s == 7.5
    assert summary.goodput_per_s == 1.0
    assert summary.statistics["time_to_first_token"].p50 == 20
    assert is_good(known[0], {"output_token_throughput_per_request": 50})
    assert not is_good(known[0], {"output_token_throughput_per_request": 500})


def test_synthetic_prompts_have_the_requested_lengths() -> None:
    prompts = synthetic(20, Lengths(100, 0, 30, 0, 40), WORDS)
    assert {prompt.num_tokens for prompt in prompts} == {100}
    assert {prompt.max_tokens for prompt in prompts} == {30}
    starts = {" ".join(prompt.text.split()[:40]) for prompt in prompts}
    assert len(starts) == 1
    assert len({prompt.text for prompt in prompts}) == 20
    assert prompts == synthetic(20, Lengths(100, 0, 30, 0, 40), WORDS)
    spread = synthetic(200, Lengths(100, 20), WORDS)
    assert 15 < max(prompt.num_tokens for prompt in spread) - 100 < 90


def test_reads_prompts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('plain words\n{"text": "json words here", "max_tokens": 9}\n\n')
    prompts = read_prompts(path, Lengths(output_mean=5), WORDS)
    assert [(prompt.text, prompt.num_tokens, prompt.max_tokens) for prompt in prompts] == [
        ("plain words", 2, 5),
        ("json words here", 3, 9),
    ]
    path.write_text('{"nothing": 1}\n')
    with pytest.raises(OptionError, match="line 1: expected a 'text'"):
        read_prompts(path, Lengths(), WORDS)


def test_a_trace_keeps_times_lengths_and_common_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    entries = [
        {"timestamp": 2000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [1, 3]},
        {"timestamp": 1500, "prompt": "hello there"},
    ]
    path.write_text("\n".join(map(json.dumps, entries)))
    prompts = read_trace(path, WORDS)
    assert [prompt.sent_s for prompt in prompts] == [0, 0, 0.5]
    assert [prompt.num_tokens for prompt in prompts] == [600, 2, 600]
    first, last = prompts[0].text.split(), prompts[2].text.split()
    assert first[:512] == last[:512]
    assert first[512:] != last[512:]
    path.write_text('{"input_length": 3}')
    with pytest.raises(OptionError, match="expected a 'timestamp'"):
        read_trace(path, WORDS)


def test_openai_payloads() -> None:
    prompt = Prompt("hi", 1, 8)
    chat = payload(
        "v1/chat/completions", "m", prompt, is_streaming=True, extra={"ignore_eos": True}
    )
    assert chat == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert payload("/v1/completions", "m", prompt, is_streaming=False, extra={}) == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 8,
    }
    assert payload("v1/embeddings", "m", prompt, is_streaming=False, extra={}) == {
        "model": "m",
        "input": "hi",
    }
    assert extra_fields(("a:1", "b:text", 'c:{"x": [1]}')) == {"a": 1, "b": "text", "c": {"x": [1]}}


def test_openai_events() -> None:
    digest = make_digest(keeps_text=True, keeps_raw=False)
    assert digest(b"[DONE]") is None
    assert digest(b'{"choices":[{"delta":{"role":"assistant","content":""}}]}') == TokenChunk(0)
    assert digest(b'{"choices":[{"delta":{"content":"x"}}],"usage":null}') == TokenChunk(
        1, text="x"
    )
    assert digest(b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}') == TokenChunk(1, text="hm")
    assert digest(b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}') == TokenChunk(1)
    assert digest(
        b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
    ) == TokenChunk(0, 3, 4)
    assert digest(
        (
            None,
            b'{"choices":[{"message":{"content":"all"}}],'
            b'"usage":{"prompt_tokens":1,"completion_tokens":2}}',
        )
    ) == TokenChunk(1, 1, 2, "all")
    for event, message in ((b'{"error":{"message":"no"}}', "no"), (b"{", "cannot be decoded")):
        with pytest.raises(ResponseFailureError, match=message):
            digest(event)


def test_generate_events() -> None:
    digest = make_generate_digest(keeps_text=True, keeps_raw=False)
    assert digest(b'{"model_name":"m","text_output":"a b"}') == TokenChunk(1, text="a b")
    assert digest(b'{"text_output":""}') == TokenChunk(0)
    with pytest.raises(ResponseFailureError, match="died"):
        digest(b'{"error":"died"}')


def test_tensors_of_a_language_model() -> None:
    facts = ModelFacts(
        "llm",
        "",
        (
            TensorFacts("text_input", "BYTES", (1,)),
            TensorFacts("stream", "BOOL", (1,), is_optional=True),
            TensorFacts("sampling_parameters", "BYTES", (1,), is_optional=True),
            TensorFacts("max_tokens", "INT32", (1,), is_optional=True),
        ),
    )
    step = prompt_dataset(facts, [Prompt("hi", 1, 6)], {"temperature": 0}, is_streaming=True).steps[
        0
    ]
    assert step["stream"].raw == b"\x01"
    assert step["max_tokens"].raw == (6).to_bytes(4, "little")
    assert json.loads(step["sampling_parameters"].raw[4:]) == {"max_tokens": 6, "temperature": 0}
    needs = ModelFacts(
        "llm", "", (TensorFacts("text_input", "BYTES", (1,)), TensorFacts("beam", "INT32", (1,)))
    )
    with pytest.raises(OptionError, match="--extra-inputs beam:VALUE"):
        prompt_dataset(needs, [Prompt("hi", 1)], {}, is_streaming=True)
    with pytest.raises(OptionError, match="no input 'text_input'"):
        prompt_dataset(
            ModelFacts("m", "", (TensorFacts("x", "FP32", (1,)),)),
            [Prompt("hi", 1)],
            {},
            is_streaming=True,
        )


def test_rejects_a_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a file"):
        token_counter(str(tmp_path))
