"""backend: "tensorrtllm": the inflight_batcher_llm tensors, whole and streamed, over HTTP and
gRPC."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest

from tests.server.harness import Server
from tests.server.llm_client import WAIT_S, reference_tokens

PROMPT = b"The capital"
FIRST = 3
"""The id of the byte-level alphabet's first character: special tokens come before it."""


def tokens(text: bytes) -> list[int]:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [FIRST + alphabet.index("Ġ" if byte == 32 else chr(byte)) for byte in text]


def infer(
    server: Server,
    model: str = "tensorrt_llm_whole",
    outputs: list[str] | None = None,
    **fields: Any,
) -> Any:
    import tritonclient.http as httpclient

    ids = tokens(PROMPT)
    values: dict[str, Any] = {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": [len(ids)],
        "request_output_len": [6],
        **fields,
    }
    inputs = []
    for name, value in values.items():
        array = _array(value)
        one = httpclient.InferInput(name, list(array.shape), _TYPES[array.dtype.name])
        one.set_data_from_numpy(array)
        inputs.append(one)
    with httpclient.InferenceServerClient(server.http) as client:
        return client.infer(
            model,
            inputs,
            outputs=[httpclient.InferRequestedOutput(name) for name in outputs]
            if outputs
            else None,
        )


_TYPES = {
    "int32": "INT32",
    "float32": "FP32",
    "bool": "BOOL",
    "uint64": "UINT64",
    "float16": "FP16",
}


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    kind = {bool: bool, int: np.int32, float: np.float32}[type(value[0])]
    return np.array([value], dtype=kind)


def test_greedy_by_default_with_the_prompt_in_front(llm_server: Server) -> None:
    result = infer(llm_server)
    ids = result.as_numpy("output_ids")
    assert ids.shape == (1, 1, len(PROMPT) + 6)
    assert result.as_numpy("sequence_length").tolist() == [[len(PROMPT) + 6]]
    assert ids[0, 0].tolist() == tokens(PROMPT) + reference_tokens(llm_server, PROMPT, 6)


def test_log_probs_counts_and_no_prompt(llm_server: Server) -> None:
    result = infer(
        llm_server,
        exclude_input_in_output=[True],
        return_log_probs=[True],
        return_num_input_tokens=[True],
        return_num_output_tokens=[True],
    )
    assert result.as_numpy("output_ids").shape == (1, 1, 6)
    assert result.as_numpy("cum_log_probs")[0, 0] == pytest.approx(
        result.as_numpy("output_log_probs").sum(), abs=1e-4
    )
    assert result.as_numpy("num_input_tokens").tolist() == [[len(PROMPT)]]
    assert result.as_numpy("num_output_tokens").tolist() == [[6]]


def test_every_requested_output_is_there(llm_server: Server) -> None:
    """An ensemble waits for all that it maps, also for what nobody asked to compute."""
    names = [
        "output_ids",
        "cum_log_probs",
        "output_log_probs",
        "context_logits",
        "generation_logits",
    ]
    result = infer(llm_server, outputs=names)
    assert all(result.as_numpy(name) is not None for name in names)


def test_end_id_and_stop_words_end_the_sequence(llm_server: Server) -> None:
    expected = reference_tokens(llm_server, PROMPT, 6)
    at = next(index for index in range(1, 6) if expected[index] not in expected[:index])
    ended = infer(llm_server, exclude_input_in_output=[True], end_id=[expected[at]])
    assert ended.as_numpy("output_ids")[0, 0].tolist() == expected[:at]
    word = np.array([[[expected[at]], [1]]], np.int32)
    stopped = infer(llm_server, exclude_input_in_output=[True], stop_words_list=word)
    assert stopped.as_numpy("output_ids")[0, 0].tolist() == expected[: at + 1]


def test_the_pad_token_that_preprocessing_sends_to_every_decoder_makes_no_difference(
    llm_server: Server,
) -> None:
    result = infer(
        llm_server, exclude_input_in_output=[True], decoder_input_ids=[2], decoder_input_lengths=[1]
    )
    assert result.as_numpy("output_ids")[0, 0].tolist() == reference_tokens(llm_server, PROMPT, 6)


def test_bad_words_and_bias_keep_tokens_out(llm_server: Server) -> None:
    first = reference_tokens(llm_server, PROMPT, 1)[0]
    banned = infer(
        llm_server,
        exclude_input_in_output=[True],
        bad_words_list=np.array([[[first], [1]]], np.int32),
    )
    assert first not in banned.as_numpy("output_ids")[0, 0].tolist()
    bias = np.zeros((1, 259), np.float32)
    bias[0, 77] = 1000
    forced = infer(llm_server, exclude_input_in_output=[True], embedding_bias=bias)
    assert set(forced.as_numpy("output_ids")[0, 0].tolist()) == {77}


def test_seeded_sampling_repeats_itself(llm_server: Server) -> None:
    fields: dict[str, Any] = {
        "runtime_top_k": [50],
        "temperature": [1.5],
        "seed": np.array([[11]], np.uint64),
        "exclude_input_in_output": [True],
    }
    first, second = (infer(llm_server, **fields).as_numpy("output_ids").tolist() for _ in range(2))
    assert first == second
    other = (
        infer(llm_server, **{**fields, "seed": np.array([[12]], np.uint64)})
        .as_numpy("output_ids")
        .tolist()
    )
    assert other != first


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"beam_width": [4]}, "input 'beam_width' is 4, expected 1"),
        ({"return_context_logits": [True]}, "input 'return_context_logits' cannot be honoured"),
        (
            {"streaming": [True]},
            "Streaming is only supported with model that is deployed using decoupled mode.",
        ),
        (
            {"prompt_embedding_table": np.ones((1, 2, 3), np.float16)},
            "input 'prompt_embedding_table' cannot be honoured: Naiad does not support prompt "
            "tuning",
        ),
        (
            {"decoder_input_ids": [5, 6], "decoder_input_lengths": [2]},
            "input 'decoder_input_ids' cannot be honoured: Naiad does not support encoder-decoder",
        ),
        (
            {
                "input_ids": np.ones((2, 11), np.int32),
                "input_lengths": np.full((2, 1), 11, np.int32),
                "request_output_len": np.ones((2, 1), np.int32),
            },
            "input 'input_ids' holds 2 prompts, expected one per request",
        ),
        ({"input_lengths": [99]}, "input 'input_lengths' is 99, but 'input_ids' has 11 tokens"),
        ({"request_output_len": [0]}, "max_tokens is 0, expected at least 1"),
        (
            {"stop_words_list": np.array([[[5, 6], [7, -1]]], np.int32)},
            "input 'stop_words_list' has a word that ends at 7",
        ),
    ],
)
def test_refusals(llm_server: Server, fields: dict[str, Any], words: str) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as refused:
        infer(llm_server, **fields)
    assert words in str(refused.value)
    assert refused.value.status() == "400"


def test_streams_new_tokens_only(llm_server: Server) -> None:
    import tritonclient.grpc as grpcclient

    ids = tokens(PROMPT)
    inputs = []
    for name, array in (
        ("input_ids", np.array([ids], np.int32)),
        ("input_lengths", np.array([[len(ids)]], np.int32)),
        ("request_output_len", np.array([[6]], np.int32)), ("streaming", np.array([[True]])),
    ):  # fmt: skip
        one = grpcclient.InferInput(name, list(array.shape), _TYPES[array.dtype.name])
        one.set_data_from_numpy(array)
        inputs.append(one)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found: list[int] = []
    with grpcclient.InferenceServerClient(llm_server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "tensorrt_llm", inputs, request_id="one", enable_empty_final_response=True
        )
        is_final = False
        while not is_final:
            result, error = answers.get(timeout=WAIT_S)
            assert error is None, error
            answer = result.get_response()
            is_final = answer.parameters["triton_final_response"].bool_param
            if answer.outputs:
                found += result.as_numpy("output_ids").ravel().tolist()
        client.stop_stream()
    assert found == reference_tokens(llm_server, PROMPT, 6)


def _stream_inputs(**values: Any) -> list[Any]:
    import tritonclient.grpc as grpcclient

    ids = tokens(PROMPT)
    inputs = []
    for name, array in {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": np.array([[len(ids)]], np.int32),
        **values,
    }.items():
        one = grpcclient.InferInput(name, list(array.shape), _TYPES[array.dtype.name])
        one.set_data_from_numpy(array)
        inputs.append(one)
    return inputs


def test_a_stop_request_ends_its_target_with_a_final_response(llm_server: Server) -> None:
    import tritonclient.grpc as grpcclient

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    length = np.array([[100_000]], np.int32)
    with grpcclient.InferenceServerClient(llm_server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "tensorrt_llm",
            _stream_inputs(request_output_len=length, streaming=np.array([[True]])),
            request_id="long",
            enable_empty_final_response=True,
        )
        result, error = answers.get(timeout=WAIT_S)
        assert error is None, error
        client.async_stream_infer(
            "tensorrt_llm",
            _stream_inputs(request_output_len=length, stop=np.array([[True]])),
            request_id="long",
            enable_empty_final_response=True,
        )
        num_final, num_tokens = 0, 0
        while num_final < 2:
            result, error = answers.get(timeout=WAIT_S)
            assert error is None, error
            answer = result.get_response()
            num_final += answer.parameters["triton_final_response"].bool_param
            if answer.outputs:
                num_tokens += result.as_numpy("output_ids").size
        client.stop_stream()
    assert num_tokens < 100_000


def test_a_stop_request_needs_an_id(llm_server: Server) -> None:
    with pytest.raises(Exception, match="Cannot send stop request without specifying a request_id"):
        infer(llm_server, stop=[True])
