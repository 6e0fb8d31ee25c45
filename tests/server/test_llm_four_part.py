"""The four-part repository and its BLS model, as `naiad init llm` writes it: the same text by every way in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_checkpoint

pytest.importorskip("torch", reason="language models need torch")
pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from naiad.tools.init_llm import init_llm

    folder = tmp_path_factory.mktemp("four_part")
    checkpoint = write_checkpoint(folder / "checkpoint")
    init_llm(str(checkpoint), folder / "repository", form="four-part")
    engine = folder / "repository" / "tensorrt_llm" / "config.pbtxt"
    engine.write_text(engine.read_text() + parameter("num_threads", 1) + parameter("kv_cache_bytes", 1 << 24))
    init_llm(str(checkpoint), folder / "one", name="one")
    with naiad([str(folder / "repository"), str(folder / "one")]) as running:
        yield running


def generate(server: Server, model: str, **fields: Any) -> dict[str, Any]:
    status, body = server.post(f"/v2/models/{model}/generate", fields)
    assert status == 200, body
    return json.loads(body)


def streamed(server: Server, model: str, **fields: Any) -> list[str]:
    status, body = server.post(f"/v2/models/{model}/generate_stream", fields)
    assert status == 200, body
    return [json.loads(line.removeprefix(b"data: "))["text_output"] for line in body.split(b"\n\n") if line]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_in_text_out(server: Server, model: str) -> None:
    expected = generate(server, "one", text_input="Hello", max_tokens=8, temperature=0)["text_output"]
    assert generate(server, model, text_input="Hello", max_tokens=8, bad_words="", stop_words="")["text_output"] == expected


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_streams_a_response_per_token(server: Server, model: str) -> None:
    assert len(streamed(server, model, text_input="Hello", max_tokens=5, stream=True)) == 5


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_sampling_fields_reach_the_engine(server: Server, model: str) -> None:
    fields = {"text_input": "Hi", "max_tokens": 6, "top_k": 40, "seed": 3, "num_return_sequences": 2, "return_log_probs": True}
    first, second = (generate(server, model, **fields) for _ in range(2))
    assert first["text_output"] == second["text_output"]
    assert len(first["text_output"]) == 2
    assert first["cum_log_probs"][0] == pytest.approx(sum(first["output_log_probs"][:6]), abs=1e-3)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_bad_words_stay_out_and_stop_words_stop(server: Server, model: str) -> None:
    fields = {"text_input": "abc", "max_tokens": 24, "top_k": 1}
    text = generate(server, model, **fields)["text_output"]
    letter = next(character for character in text if character.isascii() and character.isprintable())
    assert letter not in generate(server, model, **fields, bad_words=letter)["text_output"]
    assert generate(server, model, **fields, stop_words=letter)["text_output"] == text[: text.index(letter) + 1]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_what_the_engine_cannot_do_is_a_400(server: Server, model: str) -> None:
    status, body = server.post(f"/v2/models/{model}/generate", {"text_input": "x", "max_tokens": 3, "beam_width": 4})
    assert (status, "input 'beam_width' is 4, expected 1" in body.decode()) == (400, True)
