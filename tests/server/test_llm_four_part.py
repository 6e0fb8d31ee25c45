"""The four-part repository and its BLS model, as `naiad init llm` writes it: the same text by every
way in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_checkpoint
from tests.server.trace_reading import read_traces

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from naiad.tools.init_llm import init_llm

    folder = tmp_path_factory.mktemp("four_part")
    checkpoint = write_checkpoint(folder / "checkpoint")
    init_llm(str(checkpoint), folder / "repository", form="four-part")
    engine = folder / "repository" / "tensorrt_llm" / "config.pbtxt"
    engine.write_text(
        engine.read_text() + parameter("num_threads", 1) + parameter("kv_cache_bytes", 1 << 24)
    )
    init_llm(str(checkpoint), folder / "one", name="one")
    flags = [f"triton,file={folder / 'trace.json'}", "triton,log-frequency=1", "level=TIMESTAMPS"]
    with naiad(
        [str(folder / "repository"), str(folder / "one")],
        [f"--trace-config={flag}" for flag in flags],
    ) as running:
        running.trace_path = folder / "trace.json"  # type: ignore[attr-defined]
        yield running


def generate(server: Server, model: str, **fields: Any) -> dict[str, Any]:
    status, body = server.post(f"/v2/models/{model}/generate", fields)
    assert status == 200, body
    response: dict[str, Any] = json.loads(body)
    return response


def streamed(server: Server, model: str, **fields: Any) -> list[str]:
    status, body = server.post(f"/v2/models/{model}/generate_stream", fields)
    assert status == 200, body
    return [
        json.loads(line.removeprefix(b"data: "))["text_output"]
        for line in body.split(b"\n\n")
        if line
    ]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_in_text_out(server: Server, model: str) -> None:
    expected = generate(server, "one", text_input="Hello", max_tokens=8, temperature=0)[
        "text_output"
    ]
    assert (
        generate(server, model, text_input="Hello", max_tokens=8, bad_words="", stop_words="")[
            "text_output"
        ]
        == expected
    )


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_streams_a_response_per_token(server: Server, model: str) -> None:
    assert len(streamed(server, model, text_input="Hello", max_tokens=5, stream=True)) == 5


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_sampling_fields_reach_the_engine(server: Server, model: str) -> None:
    fields = {
        "text_input": "Hi",
        "max_tokens": 6,
        "top_k": 40,
        "seed": 3,
        "num_return_sequences": 2,
        "return_log_probs": True,
    }
    first, second = (generate(server, model, **fields) for _ in range(2))
    assert first["text_output"] == second["text_output"]
    assert len(first["text_output"]) == 2
    assert first["cum_log_probs"][0] == pytest.approx(sum(first["output_log_probs"][:6]), abs=1e-3)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_bad_words_stay_out_and_stop_words_stop(server: Server, model: str) -> None:
    fields = {"text_input": "abc", "max_tokens": 24, "top_k": 1}
    text = generate(server, model, **fields)["text_output"]
    letter = next(
        character for character in text if character.isascii() and character.isprintable()
    )
    assert letter not in generate(server, model, **fields, bad_words=letter)["text_output"]
    assert (
        generate(server, model, **fields, stop_words=letter)["text_output"]
        == text[: text.index(letter) + 1]
    )


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_what_the_engine_cannot_do_is_a_400(server: Server, model: str) -> None:
    status, body = server.post(
        f"/v2/models/{model}/generate", {"text_input": "x", "max_tokens": 3, "beam_width": 4}
    )
    assert (status, "input 'beam_width' is 4, expected 1" in body.decode()) == (400, True)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_openais_routes_take_the_repositorys_names(
    server: Server, model: str, is_stream: bool
) -> None:
    fields = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, body = server.post("/v1/chat/completions", {"model": "one", **fields})
    assert status == 200, body
    expected = json.loads(body)["choices"][0]["message"]["content"]
    status, body = server.post(
        "/v1/chat/completions", {"model": model, "stream": is_stream, **fields}
    )
    assert status == 200, body
    if is_stream:
        chunks = [
            json.loads(line[6:]) for line in body.split(b"\n\n") if line.startswith(b"data: {")
        ]
        assert {chunk["model"] for chunk in chunks} == {model}
        assert (
            "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            == expected
        )
    else:
        answer = json.loads(body)
        assert (answer["model"], answer["choices"][0]["message"]["content"]) == (model, expected)


def test_openais_list_has_what_generates(server: Server) -> None:
    names = [entry["id"] for entry in json.loads(server.get("/v1/models")[1])["data"]]
    assert names == ["ensemble", "one", "tensorrt_llm", "tensorrt_llm_bls"]
    assert server.get("/v1/models/preprocessing")[0] == 404


def test_a_chat_is_traced(server: Server) -> None:
    """The trace is that of the model that generates."""
    assert server.post("/v2/models/tensorrt_llm/trace/setting", {"trace_rate": "1"})[0] == 200
    fields = {
        "model": "ensemble",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "stream": True,
    }
    assert server.post("/v1/chat/completions", fields)[0] == 200
    path: Path = server.trace_path.with_name("trace.json.0")  # type: ignore[attr-defined]
    eventually(lambda: path.exists() and path.read_bytes().endswith(b"]"), "the trace is written")
    (trace,) = read_traces(path)
    assert trace.model == "tensorrt_llm"
    assert {
        "HTTP_RECV_START",
        "REQUEST_START",
        "COMPUTE_START",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
        "REQUEST_END",
    } <= set(trace.activities)
